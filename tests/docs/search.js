// Answer queries with the site's own search worker: node search.js SITE QUERY...
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...queries] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(folder).find((name) => /^search.*\.js$/.test(name));
let handle, answer;
const inside = {
  console,
  addEventListener: (_, handler) => (handle = handler),
  postMessage: (message) => answer(message),
};
inside.self = inside;
vm.runInNewContext(fs.readFileSync(path.join(folder, worker), "utf8"), inside);

class Worker {
  postMessage(message) {
    handle({ data: message });
  }
}
vm.runInNewContext(fs.readFileSync(path.join(site, "docs/search.js"), "utf8"), { Worker });
const ask = (message) =>
  new Promise((resolve) => {
    answer = resolve;
    new Worker().postMessage(message);
  });

(async () => {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
  await ask({ type: 0, data: { ...index, options: { suggest: false } } });
  const found = {};
  for (const query of queries) {
    const { data } = await ask({ type: 2, data: query });
    found[query] = data.items.map((item) => item[0].location.split("#")[0]);
  }
  console.log(JSON.stringify(found));
})();

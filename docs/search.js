// A flag in a query, such as --segment-size, is searched for as words. To the search engine, a dash
// before a word means that pages with this word are left out.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const QUERY = 2; // of Material's search worker
  if (message?.type === QUERY && typeof message.data === "string") {
    message = { ...message, data: message.data.replace(/(^|\s)-+(?=\S)/g, "$1") };
  }
  return post.call(this, message, ...rest);
};

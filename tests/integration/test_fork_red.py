import os
os.register_at_fork = lambda **_: None
from tests.integration.test_pretrained import *

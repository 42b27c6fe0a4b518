"""Load on a running router: prompts in, locust users at work, a record of every request out."""

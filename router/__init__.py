"""Front door: text, chat or token ids in, text out; verify and draft are reached by gRPC only."""

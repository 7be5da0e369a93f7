"""The paper's tables and figures, one module each, as resumable jobs whose claims are judged by written rules."""

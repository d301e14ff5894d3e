// Package engines runs real inference servers for tests: it makes a small
// model, starts and kills an Ollama, and listens in on the way to it. Nothing
// of the product imports it, and it never simulates: see simserver for that.
package engines

//go:build race

package main

// raced says that the race detector makes everything slow.
const raced = true

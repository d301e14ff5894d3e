package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"switchyard/config"
)

// keyCmd is the group of commands about API keys.
type keyCmd struct {
	New keyNewCmd `cmd:"" help:"Make a fresh key: it is printed once, with the entry for the configuration."`
}

// keyNewCmd makes a key.
type keyNewCmd struct {
	Name string `arg:"" help:"The key's name in the configuration, logs and metrics."`
}

// Run prints a key and its entry. The key is stored nowhere.
func (cmd *keyNewCmd) Run(c *console) error {
	if err := config.ValidKeyName(cmd.Name); err != nil {
		return usageError{err}
	}
	key := "sw-" + strings.ToLower(rand.Text())
	sum := sha256.Sum256([]byte(key))
	c.printf("The key of %s, shown this once:\n\n  %s\n\n", cmd.Name, key)
	c.printf("Its entry in the configuration:\n\nkeys:\n  list:\n    - {name: %q, sha256: %q}\n", cmd.Name, hex.EncodeToString(sum[:]))
	return nil
}

//go:build !linux

package bench

import "os/exec"

// dieWithParent needs a kernel that offers it.
func dieWithParent(*exec.Cmd) {}

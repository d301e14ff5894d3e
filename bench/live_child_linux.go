package bench

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel kill the child should this process die.
func dieWithParent(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

//go:build unix

package upstream

import "syscall"

// rawIO says that a socket can be read and written without waiting.
const rawIO = true

// readNow reads what is there. again: nothing is, yet.
func readNow(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err = syscall.Read(int(fd), p)
		if err != syscall.EINTR {
			return max(n, 0), err == syscall.EAGAIN, err
		}
	}
}

// writeNow writes what the socket has room for. again: for nothing.
func writeNow(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err = syscall.Write(int(fd), p)
		if err != syscall.EINTR {
			return max(n, 0), err == syscall.EAGAIN, err
		}
	}
}

// peekNow looks whether there is something to read and leaves it there.
// n 0 without error or again: the other side has closed.
func peekNow(fd uintptr) (n int, again bool, err error) {
	var one [1]byte
	for {
		n, _, err = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK)
		if err != syscall.EINTR {
			return max(n, 0), err == syscall.EAGAIN, err
		}
	}
}

//go:build unix && !(linux && (amd64 || arm64) && !race)

package socket

import "syscall"

// Direct says that a socket can be used without the net package.
const Direct = true

// Read reads what is there, into a p that is not empty. again: nothing is, yet.
// 0 bytes without error or again: the other side has ended.
func Read(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err = syscall.Read(int(fd), p)
		if err != syscall.EINTR {
			return max(n, 0), err == syscall.EAGAIN, err
		}
	}
}

// Write writes what there is room for. again: there is none, yet.
func Write(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err = syscall.Write(int(fd), p)
		if err != syscall.EINTR {
			return max(n, 0), err == syscall.EAGAIN, err
		}
	}
}

// WriteBoth writes what there is room for of p, which is not empty, and may leave
// the q that follows it for later.
func WriteBoth(fd uintptr, p, _ []byte) (n int, again bool, err error) { return Write(fd, p) }

// Peek looks whether there is something to read and leaves it there. 0 bytes
// without error or again: the other side has ended.
func Peek(fd uintptr) (n int, again bool, err error) {
	var one [1]byte
	for {
		n, _, err = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK)
		if err != syscall.EINTR {
			return max(n, 0), err == syscall.EAGAIN, err
		}
	}
}

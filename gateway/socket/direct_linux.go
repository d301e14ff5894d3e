//go:build linux && (amd64 || arm64) && !race

package socket

import (
	"syscall"
	"unsafe"
)

// Direct says that a socket can be used without the net package.
const Direct = true

// Read reads what is there, into a p that is not empty. again: nothing is, yet.
// 0 bytes without error or again: the other side has ended.
func Read(fd uintptr, p []byte) (n int, again bool, err error) {
	return call(syscall.SYS_RECVFROM, fd, unsafe.Pointer(unsafe.SliceData(p)), len(p), 0)
}

// Write writes what there is room for. again: there is none, yet.
func Write(fd uintptr, p []byte) (n int, again bool, err error) {
	return call(syscall.SYS_SENDTO, fd, unsafe.Pointer(unsafe.SliceData(p)), len(p), syscall.MSG_NOSIGNAL)
}

// WriteBoth writes what there is room for of p, which is not empty, and of the q
// that follows it.
func WriteBoth(fd uintptr, p, q []byte) (n int, again bool, err error) {
	both := [2]syscall.Iovec{{Base: unsafe.SliceData(p), Len: uint64(len(p))}, {Base: unsafe.SliceData(q), Len: uint64(len(q))}}
	return call(syscall.SYS_WRITEV, fd, unsafe.Pointer(&both), len(both), 0)
}

// Peek looks whether there is something to read and leaves it there. 0 bytes
// without error or again: the other side has ended.
func Peek(fd uintptr) (n int, again bool, err error) {
	var one [1]byte
	return call(syscall.SYS_RECVFROM, fd, unsafe.Pointer(&one), len(one), syscall.MSG_PEEK)
}

// call makes the system call, a socket's own where there is one: the kernel then
// does nothing that it does only for files. It does not tell the scheduler: none
// of these ever waits, and what syscall.Read and the like do around the call, for
// the case that it does, costs as much as the call's own entry. Worse, each first
// one after a moment of rest wakes the runtime's monitor, which then looks around
// every 20 µs for a while. The race detector needs theirs.
func call(trap, fd uintptr, p unsafe.Pointer, size int, flags uintptr) (n int, again bool, err error) {
	for {
		r, _, e := syscall.RawSyscall6(trap, fd, uintptr(p), uintptr(size), flags, 0, 0)
		switch e {
		case 0:
			return int(r), false, nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, true, e
		default:
			return 0, false, e
		}
	}
}

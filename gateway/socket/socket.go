// Package socket reads and writes sockets without waiting: the calls that go
// into the callbacks of a syscall.RawConn, which does the waiting. The sockets
// must be non-blocking, as those of package net are. It knows no protocol.
package socket

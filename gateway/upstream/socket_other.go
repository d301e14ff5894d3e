//go:build !unix

package upstream

import "errors"

// rawIO is false where sockets can only be used through the net package: a
// waiting exchange then holds a small buffer, and a connection the server has
// closed is noticed only when it is used.
const rawIO = false

func readNow(uintptr, []byte) (int, bool, error)  { return 0, false, errors.ErrUnsupported }
func writeNow(uintptr, []byte) (int, bool, error) { return 0, false, errors.ErrUnsupported }
func peekNow(uintptr) (int, bool, error)          { return 0, true, nil }

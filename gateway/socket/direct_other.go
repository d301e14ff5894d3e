//go:build !unix

package socket

import "errors"

// Direct is false where sockets can only be used through the net package: a
// waiting exchange then holds a small buffer, and a connection the server has
// closed is noticed only when it is used.
const Direct = false

func Read(uintptr, []byte) (int, bool, error) { return 0, false, errors.ErrUnsupported }

func Write(uintptr, []byte) (int, bool, error) { return 0, false, errors.ErrUnsupported }

func WriteBoth(uintptr, []byte, []byte) (int, bool, error) { return 0, false, errors.ErrUnsupported }
func Peek(uintptr) (int, bool, error)                      { return 0, true, nil }

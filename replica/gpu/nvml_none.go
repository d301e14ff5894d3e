//go:build !linux || !cgo

package gpu

import (
	"errors"
	"runtime"
)

// openLibrary says why NVML cannot be asked by this binary.
func openLibrary(string) (library, error) {
	if runtime.GOOS != "linux" {
		return nil, errors.New("NVML is read on Linux only: name an exporter, gpu: {exporter: URL, gpu: 0}")
	}
	return nil, errors.New("this binary was built without cgo, which NVML needs: build with CGO_ENABLED=1, or name an exporter, gpu: {exporter: URL, gpu: 0}")
}

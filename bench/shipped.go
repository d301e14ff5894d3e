package bench

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed scenarios/*.yaml
var scenarios embed.FS

// Shipped names the scenarios that are part of the program.
func Shipped() []string {
	files, _ := fs.Glob(scenarios, "scenarios/*.yaml") // its pattern is well formed
	for i := range files {
		files[i] = strings.TrimSuffix(strings.TrimPrefix(files[i], "scenarios/"), ".yaml")
	}
	return files
}

func shipped(name string) ([]byte, bool) {
	data, err := scenarios.ReadFile("scenarios/" + name + ".yaml")
	return data, err == nil
}

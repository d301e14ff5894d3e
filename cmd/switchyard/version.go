package main

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// Both may be set when building: -ldflags "-X main.version=v1.2.3 -X main.commit=abc".
// What is not set comes from what the Go toolchain recorded.
var version, commit string

// versionCmd prints what was built.
type versionCmd struct{}

// Run prints version, commit and Go version.
func (versionCmd) Run(c *console) error {
	v, from := built()
	c.printf("switchyard %s\ncommit %s\n%s %s/%s\n", v, from, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}

// built gives version and commit as far as they are known.
func built() (v, from string) {
	recorded, modified := "", ""
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			recorded = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " (modified)"
		}
	}
	if recorded != "" {
		recorded += modified
	}
	return cmp.Or(version, info.Main.Version, "(devel)"), cmp.Or(commit, recorded, "unknown")
}

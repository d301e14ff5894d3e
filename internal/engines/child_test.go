//go:build unix

package engines

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gone waits until no process of the group is left.
func gone(t *testing.T, group int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, Poll(ctx, time.Millisecond, func() (bool, error) {
		return syscall.Kill(-group, 0) == syscall.ESRCH, nil
	}), "processes of group %d are left", group)
}

func family(t *testing.T) *Child {
	t.Helper()
	child, err := Command{Path: "/bin/sh", Args: []string{"-c", "sleep 1000 & echo born; wait"}, Dir: t.TempDir()}.Start()
	require.NoError(t, err)
	_, err = child.Log.Await(t.Context(), func(line string) bool { return line == "born\n" })
	require.NoError(t, err)
	return child
}

func TestAllEndTogether(t *testing.T) {
	child := family(t)
	child.Kill()
	gone(t, child.Pid())
	child.Kill()
}

func TestNothingOutlivesTheTest(t *testing.T) {
	child := family(t)
	require.NoError(t, child.alive.Close()) // as the kernel does when this process dies
	<-child.Done()
	child.Kill()
	gone(t, child.Pid())
}

func TestTerminate(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	child, err := Command{Path: "/bin/sh", Args: []string{"-c", "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.01; done"}, Dir: t.TempDir()}.Start()
	require.NoError(t, err)
	_, err = child.Log.Await(ctx, func(line string) bool { return line == "ready\n" })
	require.NoError(t, err)
	require.NoError(t, child.Terminate(ctx))
	require.Equal(t, "ready\nasked\n", child.Log.String())
	gone(t, child.Pid())
}

func TestALineThatNeverComes(t *testing.T) {
	child, err := Command{Path: "/bin/echo", Args: []string{"no newline yet"}, Dir: t.TempDir()}.Start()
	require.NoError(t, err)
	defer child.Kill()
	_, err = child.Log.Await(t.Context(), func(line string) bool { return strings.Contains(line, "another") })
	require.ErrorContains(t, err, "ended without it")
}

func TestFindOllama(t *testing.T) {
	t.Setenv("SWITCHYARD_OLLAMA", "/nowhere/ollama")
	_, _, err := FindOllama()
	require.ErrorContains(t, err, "SWITCHYARD_OLLAMA must name the ollama program")
	t.Setenv("SWITCHYARD_OLLAMA", "")
	t.Setenv("PATH", t.TempDir())
	_, found, err := FindOllama()
	require.NoError(t, err)
	require.False(t, found)
	me, err := os.Executable()
	require.NoError(t, err)
	t.Setenv("SWITCHYARD_OLLAMA", me)
	path, found, err := FindOllama()
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, me, path)
}

func TestProcessGroup(t *testing.T) {
	pid, group, ok := processGroup("17825 (oll) ama (x) S 1 4711 17825 0 -1")
	require.Equal(t, []any{17825, 4711, true}, []any{pid, group, ok})
	_, _, ok = processGroup("")
	require.False(t, ok)
}

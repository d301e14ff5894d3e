package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// made-up lines of the traces' own form
const (
	mooncakeLines = `{"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1030, "output_length": 3, "hash_ids": [0, 1, 7]}
{"timestamp": 1500, "input_length": 200, "output_length": 0, "hash_ids": [9]}
`
	azureLines = `TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-17 18:15:46.6805900,1,0
`
)

func TestMooncakeTrace(t *testing.T) {
	all, err := readTrace(strings.NewReader(mooncakeLines), Mooncake, 0)
	require.NoError(t, err)
	require.Equal(t, []traced{
		{0, 1100, 500, []int64{0, 1, 2}},
		{1500 * time.Millisecond, 200, 0, []int64{9}},
		{3 * time.Second, 1030, 3, []int64{0, 1, 7}},
	}, all, "by time")
}

func TestAzureTrace(t *testing.T) {
	all, err := readTrace(strings.NewReader(azureLines), Azure, 0)
	require.NoError(t, err)
	require.Equal(t, []traced{{0, 374, 44, nil}, {4314579 * time.Microsecond, 396, 109, nil}, {24 * time.Hour, 1, 0, nil}}, all)
	all, err = readTrace(strings.NewReader(azureLines), Azure, 2)
	require.NoError(t, err)
	require.Len(t, all, 2)
}

func TestMistakesInTraces(t *testing.T) {
	for name, c := range map[string]struct{ format, text, want string }{
		"empty":       {Mooncake, "", "no requests in it"},
		"no JSON":     {Mooncake, mooncakeLines + "{", "line 4: want an object with timestamp"},
		"no tokens":   {Mooncake, `{"timestamp": 1}`, "line 1: 0 tokens in"},
		"no time":     {Mooncake, `{"timestamp": -1, "input_length": 3}`, "line 1: timestamp -1: want milliseconds from 0"},
		"no CSV":      {Azure, "TIMESTAMP,ContextTokens,GeneratedTokens\nabc", "line 2: 1 fields: want TIMESTAMP"},
		"bad time":    {Azure, "yesterday,1,2", `line 1: "yesterday": want a time such as`},
		"bad number":  {Azure, "2023-11-16 18:15:46,x,2", "line 1: \"x\" and \"2\": want numbers"},
		"wrong trace": {Azure, mooncakeLines, "line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readTrace(strings.NewReader(c.text), c.format, 0)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// Equal blocks of a trace are equal parts of prompts, in every trial.
func TestTracesAreReplayed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(mooncakeLines), 0o600))
	s := scenarioOf(t, "- {kind: trace, format: mooncake, speed: 10, from: 1s}")
	require.ErrorContains(t, s.ReadTraces(""), "want its file, as file: in the scenario or by --trace")
	require.ErrorContains(t, s.ReadTraces(path+"x"), "no such file")
	require.NoError(t, s.ReadTraces(path))
	require.Equal(t, 3, s.NewTraffic(1).Total())
	all := play(s.NewTraffic(1), anyOrder(), answered(1))
	require.Len(t, all, 3)
	a, short, b := all[0], all[1], all[2]
	require.Equal(t, time.Second+150*time.Millisecond, short.At, "ten times as fast")
	require.Equal(t, 1, short.OutputTokens, "there is no answer without a token")
	require.Equal(t, 1100, a.PromptTokens)
	require.Equal(t, []int{512, 512, 76}, []int{a.Prompt[0].Tokens, a.Prompt[1].Tokens, a.Prompt[2].Tokens})
	require.Equal(t, a.Prompt[:2], b.Prompt[:2])
	require.NotEqual(t, a.Prompt[2].Seed, b.Prompt[2].Seed)
	require.Equal(t, 500, a.OutputTokens)
	require.Equal(t, 500, a.MaxTokens, "by which the length gets to the simulator")
	require.Equal(t, a.Prompt, play(s.NewTraffic(2), anyOrder(), answered(1))[0].Prompt)
}

func FuzzMooncake(f *testing.F) {
	f.Add(mooncakeLines)
	f.Add(`{"timestamp": 1e300, "input_length": -5, "hash_ids": [1,2,3]}`)
	f.Fuzz(func(t *testing.T, text string) { checkTrace(t, text, Mooncake) })
}

func FuzzAzure(f *testing.F) {
	f.Add(azureLines)
	f.Add("0001-01-01 00:00:00,1,1\n9999-12-31 23:59:59.9999999,1,1")
	f.Fuzz(func(t *testing.T, text string) { checkTrace(t, text, Azure) })
}

// checkTrace: what is read can be replayed, in order, with the sizes it says.
func checkTrace(t *testing.T, text, format string) {
	all, err := readTrace(strings.NewReader(text), format, 0)
	if err != nil {
		return
	}
	s := &Scenario{Replicas: make([]Replica, 1), Classes: []Class{{Name: "a", Deadline: time.Second}}, Traffic: []Source{{Kind: "trace", Format: format, trace: all}}}
	s.complete()
	traffic, last := s.NewTraffic(1), time.Duration(0)
	for r := traffic.Next(); r != nil; r = traffic.Next() {
		require.GreaterOrEqual(t, r.At, last)
		last = r.At
		require.Equal(t, r.PromptTokens, tokensOf(r.Prompt))
		require.Positive(t, r.PromptTokens)
		require.Positive(t, r.OutputTokens)
	}
}

package probe

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadMetrics(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       float64
		absent     bool
	}{
		{"plain", "x 3\n", 3, false},
		{"no newline at the end", "x 3", 3, false},
		{"labels", `x{a="1",b="2"} 3`, 3, false},
		{"summed over labels", "x{a=\"1\"} 3\nx{a=\"2\"} 4.5\n", 7.5, false},
		{"space before the labels", `x {a="1"} 3`, 0, true},
		{"a brace, an escape and a quote in a label", `x{a="} \" \\",b="c"} 3`, 3, false},
		{"a timestamp", "x 3 1700000000000", 3, false},
		{"CRLF and tabs", "x\t3\r\n", 3, false},
		{"an exponent", "x 1.2e+03", 1200, false},
		{"another name that begins alike", "x_total 3\nxy{a=\"1\"} 4", 0, true},
		{"in a comment", "# HELP x 3\n#x 3", 0, true},
		{"NaN is none", "x NaN", 0, true},
		{"infinity is none", "x +Inf", 0, true},
		{"negative is none", "x -1", 0, true},
		{"one bad sample", "x NaN\nx 2", 2, false},
		{"labels without end", `x{a="1 3`, 0, true},
		{"no value", "x\nx \nx{}\n", 0, true},
		{"empty", "", 0, true},
	} {
		sums := readMetrics([]byte(c.text), "x", "other")
		got, ok := sums["x"]
		require.Equal(t, !c.absent, ok, c.name)
		require.InDelta(t, c.want, got, 1e-9, c.name)
	}
	require.Equal(t, -1, count(nil, "x"))
	require.Equal(t, 1<<53, count(map[string]float64{"x": 1e300}, "x"))
}

func TestReadLabel(t *testing.T) {
	for text, want := range map[string]string{
		`x{a="1",b="2"} 3`:                "2",
		`x{ a="1" , b="2" } 3`:            "2",
		`x{a="b=\"9\"",b="2"} 3`:          "2",
		"y{b=\"1\"} 3\nx 3\nx{b=\"2\"} 3": "2",
		`x{a="1"} 3`:                      "",
		`x{b="2`:                          "",
		`x{b=2} 3`:                        "",
		`x{} 3`:                           "",
		``:                                "",
	} {
		require.Equal(t, want, readLabel([]byte(text), "x", "b"), text)
	}
}

// R6: the prompt cache's size is the engine's own word.
func TestVLLMCacheTokens(t *testing.T) {
	for labels, want := range map[string]int{
		`block_size="16",enable_prefix_caching="True",num_gpu_blocks="573"`: 9168,
		`block_size="16",num_gpu_blocks="573"`:                              9168,
		`block_size="16",num_gpu_blocks="None"`:                             0,
		`block_size="16",num_gpu_blocks="-5"`:                               0,
		`enable_prefix_caching="False",num_gpu_blocks="573"`:                -1,
	} {
		require.Equal(t, want, vllmCacheTokens([]byte("vllm:cache_config_info{"+labels+"} 1.0\n")), labels)
	}
	require.Zero(t, vllmCacheTokens(nil))
}

func FuzzReadMetrics(f *testing.F) {
	for _, s := range []string{vllmNumbers, llamaNumbers, "x{", "x{a=\"\\", "x 1 2 3", `vllm:cache_config_info{block_size="16",num_gpu_blocks="9"} 1`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for name, v := range readMetrics(text, vllmRunning, vllmWaiting, "x") {
			require.GreaterOrEqual(t, v, 0.0, name)
			require.GreaterOrEqual(t, count(map[string]float64{name: v}, name), 0)
		}
		readLabel(text, vllmCache, "block_size")
		require.GreaterOrEqual(t, vllmCacheTokens(text), -1)
	})
}

// Whatever a server answers, what is kept is valid, named once and bounded.
func FuzzLists(f *testing.F) {
	for _, s := range []string{llamaModels, ollamaTags, ollamaPS, ollamaList, vllmModels, `{"data":null}`, `{"models":[{"name":"a"},{"name":"a"}]}`, `[]`, `{"data":[{"id":"a","aliases":["a",""],"meta":{"n_ctx":-1}}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		a := answer{status: http.StatusOK, body: body}
		seen := map[string]bool{}
		entries, _ := readOpenAIList(a)
		for _, m := range models(entries) {
			require.NotEmpty(t, m.Name)
			require.False(t, seen["o"+m.Name])
			seen["o"+m.Name] = true
			require.True(t, json.Valid(m.OpenAI))
			require.GreaterOrEqual(t, m.Context, 0)
			require.NotContains(t, m.Aliases, m.Name)
		}
		smallestContext(models(entries))
		rows, _ := readOllamaList(a)
		o := ollama{loaded: rows, tags: rows}
		for _, m := range o.merge() {
			require.NotEmpty(t, m.Name)
			require.False(t, seen["m"+m.Name])
			seen["m"+m.Name] = true
			require.True(t, json.Valid(m.Tag))
		}
	})
}

// Progress never falls, whatever the slots claim.
func FuzzSlots(f *testing.F) {
	f.Add([]byte(llamaIdle), []byte(llamaOneBusy))
	f.Add([]byte(`[{"id":1,"is_processing":true,"n_prompt_tokens_processed":-5,"next_token":{"n_decoded":3}}]`), []byte(`[{"next_token":[]}]`))
	f.Add([]byte(`[{"n_ctx":-1,"is_processing":true,"n_prompt_tokens_processed":9223372036854775807,"next_token":{"n_decoded":9223372036854775807}}]`), []byte(llamaIdle))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		var l llama
		before := 0
		for _, body := range [][]byte{one, two, one} {
			var slots []llamaSlot
			if !(answer{status: http.StatusOK, body: body}).decode(&slots) || len(slots) == 0 {
				continue
			}
			got := blank("")
			l.countSlots(&got, "", slots)
			require.GreaterOrEqual(t, got.Progress, before)
			before = got.Progress
			require.LessOrEqual(t, got.InHand, got.Slots)
			require.GreaterOrEqual(t, got.Context, 0)
		}
	})
}

package probe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"switchyard/replica"
)

// Describe puts what a round found into one line for the operator: engine,
// slots and where their number comes from, context, models. slots is what the
// configuration says (by model, "*" for any other; nil: auto). Where the
// engine cannot say what is needed, the line tells how to.
func Describe(f replica.Facts, slots map[string]int) string {
	if !f.Up {
		return "not usable yet: " + plain(f.Err) + "; it is asked again and again"
	}
	parts := []string{engineName(f)}
	switch {
	case f.Loading:
		parts = append(parts, "still loading its model; it is used as soon as it is ready")
	default:
		parts = append(parts, describeSlots(f, slots))
		if f.Context > 0 {
			parts = append(parts, fmt.Sprintf("context %d tokens", f.Context))
		}
		parts = append(parts, describeModels(f))
	}
	if f.Sleeping {
		parts = append(parts, "asleep")
	}
	if f.Note != "" {
		parts = append(parts, "note: "+plain(f.Note))
	}
	return strings.Join(parts, "; ")
}

func engineName(f replica.Facts) string {
	name := map[replica.Engine]string{
		replica.EngineLlamaCpp: "llama.cpp",
		replica.EngineOllama:   "Ollama",
		replica.EngineVLLM:     "vLLM",
		replica.EngineOpenAI:   "OpenAI-compatible server",
	}[f.Engine]
	if name == "" {
		name = string(f.Engine)
	}
	if f.Version != "" {
		name += " " + plain(f.Version)
	}
	return name
}

func describeSlots(f replica.Facts, configured map[string]int) string {
	if len(configured) > 0 {
		return configuredSlots(f, configured)
	}
	switch {
	case f.Engine == replica.EngineOllama:
		return "1 slot per model, because Ollama does not report its parallelism: start it with OLLAMA_NUM_PARALLEL=N and write slots: N here"
	case f.Engine == replica.EngineVLLM:
		return "slots are learned, beginning with 16, because vLLM does not report --max-num-seqs: write it as slots: N to fix them"
	case f.Slots > 0 && f.AnyModel:
		return number(f.Slots, "slot") + " (as it reports)"
	case f.Slots > 0:
		return number(f.Slots, "slot") + " (the least that its loaded models report)"
	case f.Engine == replica.EngineLlamaCpp && !f.AnyModel:
		return "1 slot until a model is loaded and reports its own"
	default:
		return "1 slot, because it does not report how many requests it runs at once: write slots: N"
	}
}

func configuredSlots(f replica.Facts, configured map[string]int) string {
	per := ""
	if f.Engine == replica.EngineOllama {
		per = " per model"
	}
	if n, ok := configured["*"]; ok && len(configured) == 1 {
		text := number(n, "slot") + per + " (configured"
		if f.Slots > 0 && f.Slots != n {
			text += fmt.Sprintf("; it reports %d", f.Slots)
		}
		return text + ")"
	}
	var each []string
	for _, model := range slices.Sorted(maps.Keys(configured)) {
		name := model
		if model == "*" {
			name = "others"
		}
		each = append(each, fmt.Sprintf("%s %d", plain(name), configured[model]))
	}
	return "slots " + strings.Join(each, ", ") + " (configured)"
}

// describeModels names the models, those in memory first where that differs.
func describeModels(f replica.Facts) string {
	switch {
	case !f.ModelsRead && len(f.Models) == 0:
		return "models unknown, any name is sent there"
	case len(f.Models) == 0:
		return "no models"
	}
	var in, all []string
	for _, m := range f.Models {
		all = append(all, plain(m.Name))
		if m.Resident {
			in = append(in, plain(m.Name)+placed(f.Engine, m))
		}
	}
	text := "model"
	if len(all) > 1 {
		text = "models"
	}
	text += " " + few(all)
	if f.AnyModel {
		text += " (it answers to any name)"
	}
	if f.Engine == replica.EngineOllama || f.Engine == replica.EngineLlamaCpp && !f.AnyModel {
		if len(in) == 0 {
			return text + ", none loaded"
		}
		text += ", loaded: " + few(in)
	}
	return text
}

// placed says where Ollama runs a loaded model.
func placed(e replica.Engine, m replica.Model) string {
	if e != replica.EngineOllama || m.Size <= 0 {
		return ""
	}
	where := fmt.Sprintf("%.0f%% on the GPU", 100*float64(m.SizeVRAM)/float64(m.Size))
	switch {
	case m.SizeVRAM >= m.Size:
		where = "on the GPU"
	case m.SizeVRAM <= 0:
		where = "on the CPU"
	}
	if m.OnCPU {
		where += ", was on the GPU before"
	}
	return " (" + where + ")"
}

// few joins the first names of a list.
func few(names []string) string {
	const most = 6
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func number(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// plain keeps what a replica said on one line and within reason: it ends up on
// a terminal.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > 200 {
		s = string(r[:200]) + "…"
	}
	return s
}

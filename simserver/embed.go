package simserver

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"switchyard/simserver/model"
)

const dimensions = 256 // of the vectors

var (
	errNoInput     = errors.New("\"input\" must be provided")
	errNoDocuments = errors.New("\"documents\" must be a non-empty string array")
)

// embedRequest is the body of all paths that make vectors.
type embedRequest struct {
	Model          string     `json:"model"`
	Input          texts      `json:"input"`
	Content        texts      `json:"content"` // llama.cpp
	Prompt         texts      `json:"prompt"`  // Ollama, the old path
	EncodingFormat string     `json:"encoding_format"`
	Truncate       *bool      `json:"truncate"`
	KeepAlive      *keepAlive `json:"keep_alive"`
}

func parseEmbed(body []byte) (*ask, error) {
	var q embedRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	for _, t := range []texts{q.Content, q.Prompt} {
		if len(q.Input.list) == 0 {
			q.Input = t
		}
	}
	if len(q.Input.list) == 0 {
		return nil, errNoInput
	}
	a := &ask{name: q.Model, inputs: len(q.Input.list), base64: q.EncodingFormat == "base64"}
	a.Model, a.Prompts = q.Model, q.Input.list
	a.NoOutput, a.NoCache = true, true
	a.Strict = q.Truncate != nil && !*q.Truncate
	return a, nil
}

// rerankRequest is the body of the rerank paths.
type rerankRequest struct {
	Model     string   `json:"model"`
	Query     string   `json:"query"`
	Documents []string `json:"documents"`
	TopN      *int     `json:"top_n"`
}

func parseRerank(body []byte) (*ask, error) {
	var q rerankRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	if len(q.Documents) == 0 {
		return nil, errNoDocuments
	}
	a := &ask{name: q.Model, inputs: len(q.Documents), said: q.Documents}
	a.Model, a.NoOutput, a.NoCache = q.Model, true, true
	for _, d := range q.Documents {
		a.Prompts = append(a.Prompts, chain(chain(nil, "query", q.Query, 1), "document", d, 1))
	}
	return a, nil
}

// noStream is the part of a form that is never streamed.
type noStream struct{ contentJSON string }

func (n noStream) contentType(bool) string                        { return n.contentJSON }
func (noStream) progress(b []byte, _ *answer, _ int) []byte       { return b }
func (noStream) first(b []byte, _ *answer) []byte                 { return b }
func (noStream) piece(b []byte, _ *answer, _ int, _ piece) []byte { return b }
func (noStream) ended(b []byte, _ *answer, _ int) []byte          { return b }
func (noStream) last(b []byte, _ *answer) []byte                  { return b }

// vector gives the numbers for an input: the same for the same text.
func vector(parts []model.Part) []float32 {
	var x uint64 = 0x9e3779b97f4a7c15
	if n := len(parts); n > 0 {
		x ^= parts[n-1].Hash
	}
	v := make([]float32, dimensions)
	var sum float64
	for i := range v {
		x = x*6364136223846793005 + 1442695040888963407
		f := float64(int64(x)>>11) / (1 << 52)
		v[i] = float32(f)
		sum += f * f
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(sum))
	}
	return v
}

func appendVector(b []byte, v []float32) []byte {
	b = append(b, '[')
	for i, f := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, float64(f), 'f', 8, 32)
	}
	return append(b, ']')
}

// openAIEmbedForm is OpenAI's list of vectors.
type openAIEmbedForm struct{ noStream }

func (f openAIEmbedForm) whole(b []byte, a *answer) []byte {
	p, _, _ := a.totals()
	data := []byte(`"data":[`)
	for i, parts := range a.ask.Prompts {
		if i > 0 {
			data = append(data, ',')
		}
		data = append(data, `{"object":"embedding","embedding":`...)
		v := vector(parts)
		if a.ask.base64 {
			raw := make([]byte, 0, 4*len(v))
			for _, x := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			}
			data = append(append(append(data, '"'), base64.StdEncoding.EncodeToString(raw)...), '"')
		} else {
			data = appendVector(data, v)
		}
		data = fmt.Appendf(data, `,"index":%d}`, i)
	}
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"total_tokens":%d}`, p, p)
	b = quoted(append(b, `{"model":`...), a.name)
	return fmt.Appendf(b, `,"object":"list",%s,%s]}`, usage, data)
}

// llamaEmbedForm is llama.cpp's own /embedding.
type llamaEmbedForm struct{ noStream }

func (llamaEmbedForm) whole(b []byte, a *answer) []byte {
	b = append(b, '[')
	for i, parts := range a.ask.Prompts {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"index":%d,"embedding":[`, i)
		b = append(appendVector(b, vector(parts)), "]}"...)
	}
	return append(b, ']')
}

// ollamaEmbedForm is Ollama's /api/embed, and the older /api/embeddings.
type ollamaEmbedForm struct {
	noStream
	old bool
}

func (f ollamaEmbedForm) whole(b []byte, a *answer) []byte {
	if f.old {
		return append(appendVector(append(b, `{"embedding":`...), vector(a.ask.Prompts[0])), '}')
	}
	b = append(quoted(append(b, `{"model":`...), a.name), `,"embeddings":[`...)
	for i, parts := range a.ask.Prompts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendVector(b, vector(parts))
	}
	p, _, _ := a.totals()
	return fmt.Appendf(b, `],"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d}`, a.now.Sub(a.arrived), max(a.load, 1), p)
}

// rerankForm is the list of relevances of llama.cpp and vLLM.
type rerankForm struct {
	noStream
	vllm bool
}

func (f rerankForm) whole(b []byte, a *answer) []byte {
	p, _, _ := a.totals()
	if f.vllm {
		b = fmt.Appendf(b, `{"id":"rerank-%s","model":`, a.id)
		b = fmt.Appendf(quoted(b, a.name), `,"usage":{"total_tokens":%d},"results":[`, p)
	} else {
		b = fmt.Appendf(quoted(append(b, `{"model":`...), a.name), `,"object":"list","usage":{"prompt_tokens":%d,"total_tokens":%d},"results":[`, p, p)
	}
	for i, parts := range a.ask.Prompts {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"index":%d,`, i)
		if f.vllm {
			b = append(quoted(append(b, `"document":{"text":`...), a.ask.said[i]), "},"...)
		}
		b = fmt.Appendf(b, `"relevance_score":%.6f}`, (vector(parts)[0]+1)/2)
	}
	return append(b, "]}"...)
}

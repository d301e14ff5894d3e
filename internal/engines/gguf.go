package engines

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
)

// The GGUF v3 container as llama.cpp documents it: a header, typed key-value
// pairs, one record a tensor, and the tensors' data, each aligned. Everything
// is little-endian. Only the types that a small Llama needs are here.
const (
	ggufMagic     = "GGUF"
	ggufVersion   = 3
	ggufAlignment = 32

	ggufUint32  = 4
	ggufInt32   = 5
	ggufFloat32 = 6
	ggufBool    = 7
	ggufString  = 8
	ggufArray   = 9

	ggmlF32 = 0
	ggmlF16 = 1
)

// pair is one entry of the metadata. Its value is a uint32, float32, bool,
// string, []string, []float32 or []int32.
type pair struct {
	key   string
	value any
}

// tensor is one matrix (cols × rows, rows may be 1) whose rows are made as they
// are written, so that no model need fit into memory twice.
type tensor struct {
	name       string
	cols, rows int
	half       bool // F16 instead of F32
	row        func(r int, out []float32)
}

func (t tensor) kind() uint32 {
	if t.half {
		return ggmlF16
	}
	return ggmlF32
}

func (t tensor) bytes() int {
	size := 4
	if t.half {
		size = 2
	}
	return t.cols * t.rows * size
}

func aligned(n int) int { return (n + ggufAlignment - 1) / ggufAlignment * ggufAlignment }

// ggufWriter writes little-endian values and remembers the first error and how
// far it is.
type ggufWriter struct {
	w   *bufio.Writer
	n   int
	err error
}

// writeGGUF writes a whole file.
func writeGGUF(out io.Writer, pairs []pair, tensors []tensor) error {
	g := &ggufWriter{w: bufio.NewWriterSize(out, 1<<18)}
	g.raw([]byte(ggufMagic))
	g.u32(ggufVersion)
	g.u64(uint64(len(tensors)))
	g.u64(uint64(len(pairs)))
	for _, p := range pairs {
		g.str(p.key)
		g.value(p.value)
	}
	offset := 0
	for _, t := range tensors {
		g.describe(t, offset)
		offset += aligned(t.bytes())
	}
	for _, t := range tensors {
		g.pad()
		g.data(t)
	}
	g.pad()
	if g.err != nil {
		return g.err
	}
	return g.w.Flush()
}

func (g *ggufWriter) raw(b []byte) {
	if g.err != nil {
		return
	}
	var n int
	n, g.err = g.w.Write(b)
	g.n += n
}

func (g *ggufWriter) u32(v uint32) { g.raw(binary.LittleEndian.AppendUint32(nil, v)) }
func (g *ggufWriter) u64(v uint64) { g.raw(binary.LittleEndian.AppendUint64(nil, v)) }

func (g *ggufWriter) str(s string) {
	g.u64(uint64(len(s)))
	g.raw([]byte(s))
}

func (g *ggufWriter) pad() { g.raw(make([]byte, aligned(g.n)-g.n)) }

func (g *ggufWriter) value(v any) {
	switch v := v.(type) {
	case uint32:
		g.u32(ggufUint32)
		g.u32(v)
	case float32:
		g.u32(ggufFloat32)
		g.u32(math.Float32bits(v))
	case bool:
		g.u32(ggufBool)
		b := byte(0)
		if v {
			b = 1
		}
		g.raw([]byte{b})
	case string:
		g.u32(ggufString)
		g.str(v)
	case []string:
		g.array(ggufString, len(v))
		for _, s := range v {
			g.str(s)
		}
	case []float32:
		g.array(ggufFloat32, len(v))
		for _, f := range v {
			g.u32(math.Float32bits(f))
		}
	case []int32:
		g.array(ggufInt32, len(v))
		for _, i := range v {
			g.u32(uint32(i))
		}
	default:
		panic("engines: a GGUF value of a type that is not written here")
	}
}

func (g *ggufWriter) array(kind uint32, n int) {
	g.u32(ggufArray)
	g.u32(kind)
	g.u64(uint64(n))
}

// describe writes a tensor's record; a vector has one dimension.
func (g *ggufWriter) describe(t tensor, offset int) {
	g.str(t.name)
	if t.rows == 1 {
		g.u32(1)
		g.u64(uint64(t.cols))
	} else {
		g.u32(2)
		g.u64(uint64(t.cols))
		g.u64(uint64(t.rows))
	}
	g.u32(t.kind())
	g.u64(uint64(offset))
}

func (g *ggufWriter) data(t tensor) {
	row := make([]float32, t.cols)
	buf := make([]byte, 0, 4*t.cols)
	for r := range t.rows {
		clear(row)
		t.row(r, row)
		buf = buf[:0]
		for _, f := range row {
			if t.half {
				buf = binary.LittleEndian.AppendUint16(buf, half(f))
			} else {
				buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(f))
			}
		}
		g.raw(buf)
	}
}

// half rounds to the nearest IEEE half float. Weights are small: what is too
// large becomes infinity and what is too small becomes zero.
func half(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	exp := int(b>>23&0xff) - 127 + 15
	frac := b & 0x7fffff
	switch {
	case exp >= 31:
		return sign | 0x7c00
	case exp <= 0:
		if exp < -10 {
			return sign
		}
		frac |= 0x800000
		shift := uint(14 - exp)
		return sign | uint16((frac+(1<<(shift-1)))>>shift)
	}
	return sign + uint16((uint32(exp)<<23+frac+0x1000)>>13)
}

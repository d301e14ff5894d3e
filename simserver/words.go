package simserver

import "strings"

// vocabulary makes the text of answers: the same words for the same seed.
type vocabulary struct{ seed uint64 }

// Three letters and a space: what a token of text costs when a client sends the
// answer back as a part of its next prompt is then what it was when it was made.
var words = strings.Fields(`
the and for are but not you all any can had her was one our out day get has him his how man new
now old see two way who did its let say she too use act add age ago air arm art ask bad bag bed
big bit box boy bus buy car cat cup cut dog dry due ear eat egg end eye far few fit fly fog fox
fun gas hat hot ice ill job joy key law lay leg lie lot low map mix net nor oak odd off oil own
pay per put ran raw red rid row run sad sat sea set sit six sky son sum sun tax tea ten tie tip
top toy try war wet why win yes yet zoo`)

// word is the text of one output token, with a space before it unless it is the
// first of its text. Garbage looks like text and is none.
func (v vocabulary) word(work, task, index int, first, garbage bool) string {
	x := v.seed + uint64(work)*0x9e3779b97f4a7c15 + uint64(task)*0xd1b54a32d192ed03 + uint64(index)*0x8cb92ba72f3d8dd7
	x ^= x >> 31
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	table := spaced
	if garbage {
		table = mangled
	}
	w := table[x%uint64(len(table))]
	if first {
		return w[1:]
	}
	return w
}

// The vocabulary with leading spaces, and the same turned round.
var spaced, mangled = func() (plain, odd []string) {
	for _, w := range words {
		b := []byte(w)
		for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
			b[i], b[j] = b[j], b[i]
		}
		plain, odd = append(plain, " "+w), append(odd, " "+string(b))
	}
	return plain, odd
}()

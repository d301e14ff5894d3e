package simserver

import "strings"

// vocabulary makes the text of answers: the same words for the same seed.
type vocabulary struct{ seed uint64 }

var words = strings.Fields(`
the a one every each some this that our their its another time way day light water paper river
stone window garden letter bridge road table lamp engine signal harbour morning evening winter
summer answer question reason pattern number measure story city village market school doctor
farmer teacher sailor child friend neighbour keeps makes finds gives takes brings holds turns
moves opens closes follows carries leaves meets builds writes reads counts waits begins ends
grows falls rises rests and or but so then while because when where under over near beyond
between after before with without across along into from slowly quickly often seldom always
perhaps quietly gladly early late well far small large old new bright dark warm cold deep high
plain quiet busy simple steady honest careful patient first second last next same other own
half whole many few more less`)

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

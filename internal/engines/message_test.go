package engines

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMessagesAreFollowedWhereverTheirBytesAreCut(t *testing.T) {
	type seen struct {
		status int
		body   string
	}
	for _, tc := range []struct {
		name, bytes string
		toHead      bool
		want        []seen
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", false, []seen{{200, "hello"}, {404, ""}}},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nB;x=1\r\n\r\n0123456\n\r\r\n0\r\nTrailer: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", false, []seen{{200, "hello\r\n0123456\n\r"}, {204, ""}}},
		{"continue", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", false, []seen{{100, ""}, {200, "x"}}},
		{"head", "HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n", true, []seen{{200, ""}, {200, ""}}},
		{"until close", "HTTP/1.1 200 OK\r\n\r\nall the rest", false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for size := 1; size <= len(tc.bytes); size++ {
				m := message{toHead: tc.toHead}
				var got []seen
				body := ""
				for rest := tc.bytes; rest != ""; {
					piece := rest[:min(size, len(rest))]
					rest = rest[len(piece):]
					for p := []byte(piece); len(p) > 0; {
						used, e := m.feed(p, true)
						p = p[used:]
						body += string(m.data)
						if e == messageRead {
							got = append(got, seen{m.status, body})
							body = ""
						}
					}
				}
				require.Equal(t, tc.want, got, "in pieces of %d", size)
				if m.untilClose {
					require.Equal(t, "all the rest", body)
				}
			}
		})
	}
}

func TestRequestsAreFollowed(t *testing.T) {
	text := "POST /api/chat HTTP/1.1\r\nx-request-id: r1\r\nContent-Length: 2\r\n\r\n{}GET / HTTP/1.1\r\n\r\n"
	for size := 1; size <= len(text); size++ {
		var m message
		var heads []string
		for rest := text; rest != ""; {
			piece := rest[:min(size, len(rest))]
			rest = rest[len(piece):]
			for p := []byte(piece); len(p) > 0; {
				used, e := m.feed(p, false)
				p = p[used:]
				if e == headRead {
					heads = append(heads, m.start+" "+m.header.Get("X-Request-Id"))
				}
			}
		}
		require.Equal(t, []string{"POST /api/chat HTTP/1.1 r1", "GET / HTTP/1.1 "}, heads, "in pieces of %d", size)
	}
}

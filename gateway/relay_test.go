package gateway

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// R8: every stream, and every whole answer, is passed on byte for byte, with
// the headers of the interface beside the replica's own.
func TestAnswersPassByteForByteR8(t *testing.T) {
	for _, f := range faces {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s stream=%v", f.name, stream), func(t *testing.T) {
				tr := newTroupe(t, f.good(stream, "X-Engine-Says: hello"))
				r := newRig(t, tr, func(o *rigging) { o.engine = f.engine })
				got := r.post(f.path, f.body(stream), "X-Request-ID: me-1")
				require.Equal(t, 200, got.status, "%s", got.raw)
				require.Equal(t, f.want(stream), got.body)
				require.True(t, got.clean)
				require.Equal(t, "me-1", got.header.Get("X-Request-ID"))
				require.Equal(t, "1", got.header.Get("X-Switchyard-Attempts"))
				require.Equal(t, "standard", got.header.Get("X-Switchyard-Class"))
				require.Equal(t, "none", got.header.Get("X-Switchyard-Affinity"))
				require.Contains(t, r.names, got.header.Get("X-Switchyard-Replica"))
				require.NotEmpty(t, got.header.Get("X-Switchyard-Queue-Ms"))
				require.Equal(t, "hello", got.header.Get("X-Engine-Says"))
				if stream {
					require.Equal(t, "no", got.header.Get("X-Accel-Buffering"))
					require.Equal(t, f.media, got.header.Get("Content-Type"))
				} else {
					require.Equal(t, fmt.Sprint(len(f.whole)), got.header.Get("Content-Length"))
				}
				require.Equal(t, f.body(stream), tr.calls()[0].body)
			})
		}
	}
}

package freeze

import (
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit/scratchfs"
)

// from the start of the guard to its exit
func BenchmarkFreezeThaw(b *testing.B) {
	for _, fstype := range []string{"xfs", "ext4"} {
		b.Run(fstype, func(b *testing.B) {
			dir := scratchfs.Mount(b, fstype)
			var frozen time.Duration
			for b.Loop() {
				f, err := self.Freeze(b.Context(), []string{dir}, time.Minute)
				if err != nil {
					b.Fatal(err)
				}
				since := time.Now()
				if err := f.Thaw(); err != nil {
					b.Fatal(err)
				}
				frozen += time.Since(since)
			}
			b.ReportMetric(float64(frozen.Microseconds())/float64(b.N), "thaw-µs/op")
		})
	}
}

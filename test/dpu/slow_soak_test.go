//go:build soak

package dpu

import (
	"testing"
	"time"
)

// SNAP hangs for 90 s in every request, and the plugin has its real timeouts.
func TestSNAPIsSlowInRealTime(t *testing.T) {
	t.Parallel()
	slow(t, plain, slowness{each: 90 * time.Second, answer: 25 * time.Second, look: 5 * time.Second, grace: 30 * time.Second}, true)
}

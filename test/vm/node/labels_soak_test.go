//go:build soak

package node

import (
	"testing"

	"github.com/cleatproject/cleat/test/vm/image"
)

// TestLabels is testLabels of TestOutages with newer kernels.
func TestLabels(t *testing.T) {
	t.Parallel()
	for _, kernel := range []image.Source{image.Backports, image.Testing} {
		t.Run(string(kernel), func(t *testing.T) {
			t.Parallel()
			testLabels(newRig(t, "xfs", kernel), true)
		})
	}
}

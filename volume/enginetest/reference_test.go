package enginetest_test

import (
	"context"
	"io"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// harness runs the suite on the reference itself, with what change takes away.
func harness(change func(*volume.Backend)) enginetest.Harness {
	reference := func(b volume.Backend) *enginetest.Reference { return b.Engine.(*enginetest.Reference) }
	return enginetest.Harness{
		New: func(t *testing.T) volume.Backend {
			b := enginetest.NewReference().Backend()
			change(&b)
			return b
		},
		Open: func(t *testing.T, b volume.Backend, v volume.Volume) enginetest.Device {
			d, err := reference(b).Open(v.ID)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		OpenSnapshot: func(t *testing.T, b volume.Backend, s volume.Snapshot) io.ReaderAt {
			r, err := reference(b).OpenSnapshot(s.ID)
			if err != nil {
				t.Fatal(err)
			}
			return r
		},
		Hold: func(t *testing.T, b volume.Backend, v volume.Volume) func() {
			release, err := reference(b).Hold(v.ID)
			if err != nil {
				t.Fatal(err)
			}
			return release
		},
		Parameters: map[string]string{"provisioning": "thin"},
		FSTypes:    []string{"ext4", "xfs"},
		Changes:    []map[string]string{{"provisioning": "thick", "readAheadKiB": "512"}, {"trimInterval": "24h"}, {"provisioning": "thin"}},
	}
}

func TestReference(t *testing.T) {
	enginetest.Run(t, harness(func(*volume.Backend) {}))
}

// TestReferenceWithoutAbilities shows that the suite holds for an engine that
// offers nothing but volumes.
func TestReferenceWithoutAbilities(t *testing.T) {
	h := harness(func(b *volume.Backend) {
		*b = volume.Backend{Engine: b.Engine, Parameters: b.Parameters}
	})
	h.New = func(inner func(*testing.T) volume.Backend) func(*testing.T) volume.Backend {
		return func(t *testing.T) volume.Backend {
			b := inner(t)
			b.Engine = plain{b.Engine.(*enginetest.Reference)}
			return b
		}
	}(h.New)
	h.Open = func(t *testing.T, b volume.Backend, v volume.Volume) enginetest.Device {
		d, err := b.Engine.(plain).Open(v.ID)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	h.Hold, h.Changes, h.OpenSnapshot = nil, nil, nil
	enginetest.Run(t, h)
}

// plain is the reference as an engine that serves no sources.
type plain struct{ *enginetest.Reference }

func (p plain) Create(ctx context.Context, req volume.CreateRequest) (volume.Volume, error) {
	if !req.Source.IsZero() && (req.Source.Volume == "" || req.Source.Snapshot == "") {
		return volume.Volume{}, errs.Errorf(errs.Unsupported, "this engine makes empty volumes only")
	}
	return p.Reference.Create(ctx, req)
}

// TestDeltaFromALargerBase: of a base that was cut after the volume grew, what
// lies beyond the target is no change of the target.
func TestDeltaFromALargerBase(t *testing.T) {
	ctx := t.Context()
	r := enginetest.NewReference()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const mib = 1 << 20
	v, err := r.Create(ctx, volume.CreateRequest{Name: "v", Content: volume.Raw, Size: volume.SizeRange{Required: mib}})
	must(err)
	small, err := r.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "small", Source: v.ID})
	must(err)
	v, err = r.Expand(ctx, v.ID, volume.SizeRange{Required: 2 * mib})
	must(err)
	d, err := r.Open(v.ID)
	must(err)
	_, err = d.WriteAt([]byte("beyond"), 2*mib-4096)
	must(err)
	large, err := r.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "large", Source: v.ID})
	must(err)
	m, err := r.Delta(ctx, large.ID, small.ID, 0)
	must(err)
	for changed, err := range m.Ranges {
		t.Errorf("%v of %d bytes, %v", changed, m.Size, err)
	}
}

package enginetest_test

import (
	"context"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

const faultVariable = "CLEAT_ENGINETEST_FAULT"

// Each engine below has one fault, and the named parts must fail, in a process
// of their own: a test cannot observe its own failure.
func TestSuiteFindsFaults(t *testing.T) {
	self := testkit.Value(os.Executable())(t)
	for fault, parts := range map[string][]string{
		"creates twice":         {"Create", "Concurrency", "Cancelled", "Model"},
		"ignores size":          {"Create"},
		"delete not idempotent": {"Delete", "ForeignIDs"},
		"trims ids":             {"ForeignIDs"},
		"skips an entry":        {"List", "ListWhileDeleting"},
		"size not stored":       {"Expand", "Model"},
		"snapshot shares data":  {"Snapshots", "Restore", "Model"},
		"omits a range":         {"Deltas"},
		"deletes group members": {"Groups"},
		"keeps deleted group":   {"Groups"},
		"partial modify":        {"Modify"},
		"deletes volume in use": {"Delete"},
		"keeps old data":        {"OldData"},
	} {
		for _, part := range parts {
			t.Run(fault+"/"+part, func(t *testing.T) {
				t.Parallel()
				cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestEngineWithFault$/^"+part+"$",
					"-test.v", "-rapid.nofailfile", "-rapid.shrinktime=1ms")
				// Otherwise the race detector waits a second at exit.
				cmd.Env = append(os.Environ(), faultVariable+"="+fault, "GORACE=atexit_sleep_ms=0")
				out, err := cmd.CombinedOutput()
				if err == nil || !strings.Contains(string(out), "--- FAIL: TestEngineWithFault/"+part) {
					t.Errorf("the suite did not notice (%v):\n%s", err, out)
				}
			})
		}
	}
}

// The fault is in faultVariable; without one the suite must pass.
func TestEngineWithFault(t *testing.T) {
	fault := os.Getenv(faultVariable)
	h := harness(func(*volume.Backend) {})
	inner := func(b volume.Backend) volume.Backend {
		return b.Engine.(*faulty).Backend()
	}
	open, hold := h.Open, h.Hold
	h.OpenSnapshot = nil // restored volumes are sufficient
	if fault != "" {
		h.Budget = time.Minute // for a loaded machine
	}
	h.New = func(*testing.T) volume.Backend {
		f := &faulty{Reference: enginetest.NewReference(), fault: fault}
		b := f.Backend()
		b.Engine, b.Snapshots, b.Groups, b.Deltas, b.Modifier = f, f, f, f, f
		return b
	}
	h.Open = func(t *testing.T, b volume.Backend, v volume.Volume) enginetest.Device { return open(t, inner(b), v) }
	h.Hold = func(t *testing.T, b volume.Backend, v volume.Volume) func() {
		if fault == "deletes volume in use" {
			return func() {}
		}
		return hold(t, inner(b), v)
	}
	enginetest.Run(t, h)
}

type faulty struct {
	*enginetest.Reference
	fault string
	old   []byte // content of the last deleted volume
}

func (f *faulty) Create(ctx context.Context, req volume.CreateRequest) (volume.Volume, error) {
	asked := req
	switch {
	case f.fault == "creates twice":
		req.Name = string(volume.NewID(""))
	case f.fault == "ignores size":
		all, err := f.Reference.List(ctx, "", 0)
		if i := slices.IndexFunc(all, func(v volume.Volume) bool { return v.Name == req.Name }); err == nil && i >= 0 {
			return all[i], nil
		}
	case f.fault == "snapshot shares data" && req.Source.Snapshot != "":
		if s, err := f.Reference.GetSnapshot(ctx, req.Source.Snapshot); err == nil {
			req.Source = volume.Source{Volume: s.Source}
		}
	}
	v, err := f.Reference.Create(ctx, req)
	if d, missing := f.Reference.Open(v.ID); missing == nil && err == nil && len(f.old) > 0 {
		_, err = d.WriteAt(f.old, 0)
	}
	v.Name, v.Source = asked.Name, asked.Source
	return v, err
}

func (f *faulty) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	if f.fault == "trims ids" {
		id = volume.ID(strings.TrimSpace(string(id)))
	}
	return f.Reference.Get(ctx, id)
}

func (f *faulty) Delete(ctx context.Context, id volume.ID) error {
	if f.fault == "delete not idempotent" {
		if _, err := f.Reference.Get(ctx, id); err != nil {
			return err
		}
	}
	if v, err := f.Reference.Get(ctx, id); err == nil && f.fault == "keeps old data" {
		d, err := f.Reference.Open(id)
		if err != nil {
			return err
		}
		f.old = make([]byte, v.Size)
		if _, err := d.ReadAt(f.old, 0); err != nil {
			return err
		}
	}
	return f.Reference.Delete(ctx, id)
}

func (f *faulty) List(ctx context.Context, after volume.ID, limit int) ([]volume.Volume, error) {
	if f.fault == "skips an entry" && after != "" {
		if next, err := f.Reference.List(ctx, after, 1); err == nil && len(next) == 1 {
			after = next[0].ID
		}
	}
	return f.Reference.List(ctx, after, limit)
}

func (f *faulty) Expand(ctx context.Context, id volume.ID, size volume.SizeRange) (volume.Volume, error) {
	if f.fault != "size not stored" {
		return f.Reference.Expand(ctx, id, size)
	}
	v, err := f.Reference.Get(ctx, id)
	v.Size = max(v.Size, size.Required)
	return v, err
}

func (f *faulty) Delta(ctx context.Context, base, target volume.SnapshotID, from int64) (volume.BlockMap, error) {
	m, err := f.Reference.Delta(ctx, base, target, from)
	if err != nil || f.fault != "omits a range" {
		return m, err
	}
	whole := m.Ranges
	m.Ranges = func(yield func(volume.Range, error) bool) {
		first := true
		for r, err := range whole {
			if !first && !yield(r, err) {
				return
			}
			first = false
		}
	}
	return m, nil
}

func (f *faulty) DeleteSnapshot(ctx context.Context, id volume.SnapshotID) error {
	err := f.Reference.DeleteSnapshot(ctx, id)
	if f.fault == "deletes group members" {
		return nil
	}
	return err
}

func (f *faulty) DeleteGroup(ctx context.Context, id volume.GroupID) error {
	if f.fault == "keeps deleted group" {
		return nil
	}
	return f.Reference.DeleteGroup(ctx, id)
}

func (f *faulty) Modify(ctx context.Context, id volume.ID, parameters map[string]string) (volume.Volume, error) {
	if f.fault == "partial modify" && parameters["noSuchKey"] != "" {
		known := maps.Clone(parameters)
		delete(known, "noSuchKey")
		if _, err := f.Reference.Modify(ctx, id, known); err != nil {
			return volume.Volume{}, err
		}
	}
	return f.Reference.Modify(ctx, id, parameters)
}

// change removes abilities of the reference.
func harness(change func(*volume.Backend)) enginetest.Harness {
	reference := func(b volume.Backend) *enginetest.Reference { return b.Engine.(*enginetest.Reference) }
	return enginetest.Harness{
		New: func(t *testing.T) volume.Backend {
			b := enginetest.NewReference().Backend()
			change(&b)
			return b
		},
		Open: func(t *testing.T, b volume.Backend, v volume.Volume) enginetest.Device {
			return testkit.Value(reference(b).Open(v.ID))(t)
		},
		OpenSnapshot: func(t *testing.T, b volume.Backend, s volume.Snapshot) io.ReaderAt {
			return testkit.Value(reference(b).OpenSnapshot(s.ID))(t)
		},
		Hold: func(t *testing.T, b volume.Backend, v volume.Volume) func() {
			return testkit.Value(reference(b).Hold(v.ID))(t)
		},
		Parameters: map[string]string{"provisioning": "thin"},
		FSTypes:    []string{"ext4", "xfs"},
		Changes:    []map[string]string{{"provisioning": "thick", "readAheadKiB": "512"}, {"trimInterval": "24h"}, {"provisioning": "thin"}},
	}
}

func TestReference(t *testing.T) {
	enginetest.Run(t, harness(func(*volume.Backend) {}))
}

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
		return testkit.Value(b.Engine.(plain).Open(v.ID))(t)
	}
	h.Hold, h.Changes, h.OpenSnapshot = nil, nil, nil
	enginetest.Run(t, h)
}

// plain has no sources of volumes.
type plain struct{ *enginetest.Reference }

func (p plain) Create(ctx context.Context, req volume.CreateRequest) (volume.Volume, error) {
	if !req.Source.IsZero() && (req.Source.Volume == "" || req.Source.Snapshot == "") {
		return volume.Volume{}, errs.Errorf(errs.Unsupported, "this engine creates empty volumes only")
	}
	return p.Reference.Create(ctx, req)
}

// Ranges beyond the end of the target are not in a delta.
func TestDeltaFromALargerBase(t *testing.T) {
	ctx := t.Context()
	r := enginetest.NewReference()
	must := func(err error) {
		t.Helper()
		testkit.Must(t, err)
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

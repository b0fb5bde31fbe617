package volume_test

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

const mib = 1 << 20

func TestSizeRangeString(t *testing.T) {
	for want, r := range map[string]volume.SizeRange{
		"any size": {}, "at least 2147483648 bytes": {Required: 2 << 30}, "at most 100 bytes": {Limit: 100},
		"exactly 4096 bytes": {Required: 4096, Limit: 4096}, "between 1 and 2 bytes": {Required: 1, Limit: 2},
	} {
		if got := r.String(); got != want {
			t.Errorf("%d to %d reads %q, want %q", r.Required, r.Limit, got, want)
		}
	}
}

// Properties are tested below.
func TestChoose(t *testing.T) {
	for name, c := range map[string]struct {
		size                       volume.SizeRange
		fallback, minimum, granule int64
		want                       int64
		kind                       errs.Kind
	}{
		"no size requested":        {fallback: 100, minimum: 10, granule: 10, want: 100},
		"fallback is rounded up":   {fallback: 101, minimum: 10, granule: 10, want: 110},
		"required is kept":         {size: volume.SizeRange{Required: 50}, fallback: 100, minimum: 10, granule: 10, want: 50},
		"required is rounded up":   {size: volume.SizeRange{Required: 51}, fallback: 100, minimum: 10, granule: 10, want: 60},
		"minimum":                  {size: volume.SizeRange{Required: 1}, fallback: 100, minimum: 30, granule: 10, want: 30},
		"minimum is rounded up":    {size: volume.SizeRange{Required: 1}, fallback: 100, minimum: 31, granule: 10, want: 40},
		"limit below fallback":     {size: volume.SizeRange{Limit: 55}, fallback: 100, minimum: 10, granule: 10, want: 50},
		"exactly":                  {size: volume.SizeRange{Required: 50, Limit: 50}, fallback: 100, minimum: 10, granule: 10, want: 50},
		"no multiple in the range": {size: volume.SizeRange{Required: 51, Limit: 59}, fallback: 100, minimum: 10, granule: 10, kind: errs.OutOfRange},
		"limit below minimum":      {size: volume.SizeRange{Limit: 29}, fallback: 100, minimum: 30, granule: 10, kind: errs.OutOfRange},
		"too large to round":       {size: volume.SizeRange{Required: math.MaxInt64}, fallback: 100, minimum: 10, granule: 10, kind: errs.OutOfRange},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.size.Choose(c.fallback, c.minimum, c.granule)
			if c.kind != "" {
				if errs.KindOf(err) != c.kind {
					t.Fatalf("got %d, %v; want an error of kind %q", got, err, c.kind)
				}
				return
			}
			if err != nil || got != c.want {
				t.Fatalf("got %d, %v; want %d", got, err, c.want)
			}
		})
	}
}

// A required size gets the smallest result, and errors are returned only if no
// size is possible.
func TestChooseProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		granule := rapid.Int64Range(1, 64).Draw(t, "granule")
		minimum := rapid.Int64Range(0, 500).Draw(t, "minimum")
		fallback := rapid.Int64Range(minimum, 2000).Draw(t, "fallback")
		size := volume.SizeRange{
			Required: rapid.Int64Range(0, 1000).Draw(t, "required"),
			Limit:    rapid.Int64Range(0, 1000).Draw(t, "limit"),
		}
		fits := func(n int64) bool { return n > 0 && size.Admits(n) && n >= minimum && n%granule == 0 }
		got, err := size.Choose(fallback, minimum, granule)
		if err == nil {
			if got != 0 && !fits(got) {
				t.Fatalf("%+v.Choose(%d, %d, %d) = %d", size, fallback, minimum, granule, got)
			}
			for n := int64(1); size.Required > 0 && n < got; n++ {
				if fits(n) {
					t.Fatalf("%+v.Choose(%d, %d, %d) = %d, %d is smaller", size, fallback, minimum, granule, got, n)
				}
			}
			return
		}
		if errs.KindOf(err) != errs.OutOfRange {
			t.Fatalf("%+v.Choose(%d, %d, %d): kind %q", size, fallback, minimum, granule, errs.KindOf(err))
		}
		for n := int64(1); n <= 4000; n++ {
			if fits(n) {
				t.Fatalf("%+v.Choose(%d, %d, %d): %v, yet %d fits", size, fallback, minimum, granule, err, n)
			}
		}
	})
}

// all numbers
func TestChooseNeverWraps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := volume.SizeRange{
			Required: rapid.Int64Range(0, math.MaxInt64).Draw(t, "required"),
			Limit:    rapid.Int64Range(0, math.MaxInt64).Draw(t, "limit"),
		}
		got, err := size.Choose(mib, mib, 4096)
		if err == nil && (!size.Admits(got) || got < mib || got%4096 != 0) {
			t.Fatalf("%+v.Choose = %d", size, got)
		}
	})
}

func TestAdmits(t *testing.T) {
	for _, c := range []struct {
		size volume.SizeRange
		n    int64
		want bool
	}{
		{volume.SizeRange{}, 0, true},
		{volume.SizeRange{}, mib, true},
		{volume.SizeRange{Required: 2}, 1, false},
		{volume.SizeRange{Required: 2}, 2, true},
		{volume.SizeRange{Limit: 2}, 2, true},
		{volume.SizeRange{Limit: 2}, 3, false},
		{volume.SizeRange{Required: 2, Limit: 2}, 2, true},
	} {
		if got := c.size.Admits(c.n); got != c.want {
			t.Errorf("%+v.Admits(%d) = %v", c.size, c.n, got)
		}
	}
}

func TestSmallWords(t *testing.T) {
	if r := (volume.Range{Offset: 4096, Length: 8192}); r.End() != 12288 || r.String() != "[4096,12288)" {
		t.Errorf("%v ends at %d", r, r.End())
	}
	if !(volume.Source{}).IsZero() || (volume.Source{Volume: "v"}).IsZero() || (volume.Source{Snapshot: "s"}).IsZero() {
		t.Error("IsZero is wrong for a source")
	}
	if (volume.Progress{}).Running() || (volume.Progress{Done: 2, Total: 2}).Running() || !(volume.Progress{Total: 2}).Running() {
		t.Error("Running is wrong for a progress")
	}
}

func TestNewIDsAreSoundUniqueAndInOrder(t *testing.T) {
	makers := map[string]func() string{
		"vol-":   func() string { return string(volume.NewID("")) },
		"snap-":  func() string { return string(volume.NewSnapshotID("")) },
		"group-": func() string { return string(volume.NewGroupID("")) },
	}
	for prefix, make := range makers {
		var ids []string
		for range 5000 {
			id := make()
			if err := volume.CheckID(id); err != nil || !strings.HasPrefix(id, prefix) {
				t.Fatalf("id %q: %v", id, err)
			}
			ids = append(ids, id)
		}
		if !slices.IsSorted(ids) {
			t.Errorf("%s ids are not in the order of creation", prefix)
		}
		if len(slices.Compact(ids)) != 5000 {
			t.Errorf("%s ids come twice", prefix)
		}
	}
}

func TestCheckIDRefuses(t *testing.T) {
	for _, id := range []string{
		"", ".", "..", "../x", "a/b", "/a", "a\x00", "a b", " a", "-a", ".a", "_a", "a\n", "é", "a\\b", "%2e", "\xff", strings.Repeat("a", 129),
	} {
		if err := volume.CheckID(id); errs.KindOf(err) != errs.Invalid || err == nil {
			t.Errorf("CheckID(%.40q) = %v, want an error of kind %q", id, err, errs.Invalid)
		}
	}
	if err := volume.CheckID(strings.Repeat("a", 128)); err != nil {
		t.Errorf("an id of 128 bytes: %v", err)
	}
	if err := volume.CheckID(strings.Repeat("/", 128)); len(err.Error()) > 250 {
		t.Errorf("a foreign id floods the message: %d bytes", len(err.Error()))
	}
}

// Engines join ids to paths.
func TestCheckedIDIsOnePathElement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.OneOf(rapid.String(), rapid.StringMatching(`[A-Za-z0-9./_:\\-]{1,140}`)).Draw(t, "id")
		if volume.CheckID(id) != nil {
			return
		}
		if !filepath.IsLocal(id) || filepath.Base(id) != id || filepath.Clean(id) != id || len(id) > volume.MaxIDLength {
			t.Fatalf("CheckID admits %q", id)
		}
	})
}

func TestIDPoolAndTime(t *testing.T) {
	const own, other = "7d1f5a52-3c77-4d43-8a1e-0123456789ab", "7d1f5a52-3c77-4d43-8a1e-ba9876543210"
	began := time.Now().Add(-time.Millisecond)
	for _, id := range []string{string(volume.NewID(own)), string(volume.NewSnapshotID(""))} {
		if at := volume.IDTime(id); at.Before(began) || at.After(time.Now()) {
			t.Errorf("IDTime(%q) = %v, want about %v", id, at, began)
		}
	}
	if at := volume.IDTime("vol-1"); !at.IsZero() {
		t.Errorf("IDTime of another id = %v", at)
	}
	for id, want := range map[string]bool{
		string(volume.NewID(own)):           false,
		string(volume.NewSnapshotID(own)):   false,
		string(volume.NewGroupID(own)):      false,
		string(volume.NewID(other)):         true,
		string(volume.NewSnapshotID(other)): true,
		string(volume.NewID("")):            true, // of releases without pools in ids
		string(volume.NewID(other)) + "0":   false,
		"vol-1":                             false,
		"":                                  false,
	} {
		if got := volume.CanBeInAnotherPool(id, own); got != want {
			t.Errorf("CanBeInAnotherPool(%q) = %v, want %v", id, got, want)
		}
	}
}

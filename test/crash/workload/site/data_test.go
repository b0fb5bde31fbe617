package site

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// The oracle must accept every possible state and reject all others.
func TestCheck(t *testing.T) {
	const old, young uint64 = 4711, 4712
	torn := slices.Concat(bytesOf(young)[:3*sector], bytesOf(old)[3*sector:])
	mixed := slices.Concat(bytesOf(young)[:sector/2], bytesOf(old)[sector/2:])
	for _, c := range []struct {
		name  string
		holds []byte // nil: there is no file
		seeds []uint64
		ok    bool
	}{
		{"what was written", bytesOf(old), []uint64{old}, true},
		{"nothing", nil, []uint64{old}, false},
		{"less", bytesOf(old)[:sector], []uint64{old}, false},
		{"zeros", make([]byte, BlockSize), []uint64{old}, false},
		{"an older write", bytesOf(old), []uint64{young}, false},
		{"one changed byte", append([]byte{bytesOf(old)[0] + 1}, bytesOf(old)[1:]...), []uint64{old}, false},
		{"old of two", bytesOf(old), []uint64{old, young}, true},
		{"new of two", bytesOf(young), []uint64{old, young}, true},
		{"sectors of both", torn, []uint64{old, young}, true},
		{"a torn sector", mixed, []uint64{old, young}, false},
		{"sectors of both, where one was acknowledged", torn, []uint64{young}, false},
		{"nothing yet", nil, []uint64{Never, young}, true},
		{"an empty file", []byte{}, []uint64{Never, young}, true},
		{"a part", bytesOf(young)[:sector], []uint64{Never, young}, true},
		{"garbage", bytesOf(1), []uint64{Never, young}, false},
		{"nothing, though there was something", nil, []uint64{old, young}, false},
		{"an empty file, though there was something", []byte{}, []uint64{old, young}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if c.holds != nil {
				testkit.Must(t, os.WriteFile(filepath.Join(dir, "f"), c.holds, 0o600))
			}
			err := Site{}.Check(Spot{Target: dir, Key: "f"}, c.seeds...)
			if (err == nil) != c.ok {
				t.Errorf("Check = %v, want it to pass: %v", err, c.ok)
			}
		})
	}
}

func TestWriteOffset(t *testing.T) {
	dir := t.TempDir()
	device := filepath.Join(dir, "device")
	testkit.Must(t, os.WriteFile(device, make([]byte, 4*BlockSize), 0o600))
	spots := map[Spot]uint64{
		{Target: device, Block: true, Key: "1"}: 11,
		{Target: device, Block: true, Key: "3"}: 13,
		{Target: dir, Key: "file"}:              17,
	}
	for at, seed := range spots {
		testkit.Must(t, (Site{}).Write(at, seed, true))
	}
	spots[Spot{Target: device, Block: true, Key: "0"}] = Never
	spots[Spot{Target: device, Block: true, Key: "2"}] = Never
	for at, seed := range spots {
		if err := (Site{}).Check(at, seed); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
	if err := (Site{}).Write(Spot{Target: device, Block: true, Key: "one"}, 1, true); err == nil {
		t.Error("a block that has no number was written")
	}
}

package local

import (
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func TestParseSettings(t *testing.T) {
	base := settings{Provisioning: thin}
	good := []struct {
		parameters map[string]string
		want       settings
	}{
		{nil, settings{Provisioning: thin}},
		{map[string]string{"provisioning": "thick"}, settings{Provisioning: thick}},
		{map[string]string{"trimInterval": "90m"}, settings{Provisioning: thin, TrimInterval: "1h30m0s"}},
		{map[string]string{"trimInterval": "0"}, settings{Provisioning: thin, TrimInterval: "0"}},
		{map[string]string{"readAheadKiB": "0128"}, settings{Provisioning: thin, ReadAhead: "128"}},
	}
	for _, c := range good {
		if got, err := parseSettings(base, c.parameters); err != nil || got != c.want {
			t.Errorf("parseSettings(%v) = %+v, %v; want %+v", c.parameters, got, err, c.want)
		}
	}
	bad := []struct{ key, value, says string }{
		{"provisoning", "thin", `"provisioning"`},
		{"provisioning", "thikk", `"thick"`},
		{"colour", "red", "known are provisioning"},
		{"trimInterval", "daily", "24h"},
		{"trimInterval", "-1h", "at least"},
		{"trimInterval", "5s", "at least"},
		{"readAheadKiB", "-1", "KiB"},
		{"readAheadKiB", "1e3", "KiB"},
		{"readAheadKiB", "99999999", "KiB"},
	}
	for _, c := range bad {
		_, err := parseSettings(base, map[string]string{c.key: c.value})
		wantKind(t, err, c.key+"="+c.value, errs.Invalid)
		if err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s=%s: %v has no %q", c.key, c.value, err, c.says)
		}
	}
}

func TestSettingsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := settings{
			Provisioning: rapid.SampledFrom([]string{thin, thick}).Draw(t, "provisioning"),
			TrimInterval: rapid.SampledFrom([]string{"", "0", "1m0s", "24h0m0s"}).Draw(t, "trim"),
			ReadAhead:    rapid.SampledFrom([]string{"", "0", "4096"}).Draw(t, "read-ahead"),
		}
		if got, err := parseSettings(settings{Provisioning: thin}, s.parameters()); err != nil || got != s {
			t.Fatalf("%+v became %+v, %v", s, got, err)
		}
	})
}

func TestConsistency(t *testing.T) {
	for value, want := range map[string]bool{"group": false, "member": true} {
		if got, err := parseConsistency(map[string]string{"consistency": value}); err != nil || got != want {
			t.Errorf("consistency=%s: %v, %v", value, got, err)
		}
	}
	for _, parameters := range []map[string]string{{"consistency": "none"}, {"consistancy": "group"}} {
		_, err := parseConsistency(parameters)
		wantKind(t, err, "a wrong parameter of a group", errs.Invalid)
	}
}

const gib = 1 << 30

// 100 GiB, so a reserve of 1 GiB
func pool100(free int64) space { return space{total: 100 * gib, free: free, used: 100*gib - free} }

func TestBudget(t *testing.T) {
	cases := []struct {
		what                string
		b                   *budget
		free                int64
		wantThin, wantThick int64
	}{
		{"empty", &budget{ratio: 1}, 100 * gib, 99 * gib, 99 * gib},
		{"a thin promise", &budget{ratio: 1, thin: 50 * gib}, 100 * gib, 49 * gib, 49 * gib},
		{"the same, written", &budget{ratio: 1, thin: 50 * gib, allocated: 50 * gib}, 50 * gib, 49 * gib, 49 * gib},
		{"snapshots ate the rest", &budget{ratio: 1, thin: 50 * gib, allocated: 90 * gib}, 10 * gib, 9 * gib, 9 * gib},
		{"others ate the rest", &budget{ratio: 1, allocated: 0}, 20 * gib, 19 * gib, 19 * gib},
		{"twice promised", &budget{ratio: 2, thin: 50 * gib}, 100 * gib, 148 * gib, 74 * gib},
		{"thick on its way", &budget{ratio: 2, thick: 40 * gib, pending: 40 * gib}, 100 * gib, 118 * gib, 59 * gib},
		{"thick is never doubled", &budget{ratio: 2, thick: 40 * gib, allocated: 40 * gib}, 60 * gib, 118 * gib, 59 * gib},
		{"over-promised", &budget{ratio: 1, thin: 500 * gib}, 100 * gib, 0, 0},
		{"below the reserve", &budget{ratio: 10, allocated: 100 * gib}, gib / 2, 0, 0},
	}
	for _, c := range cases {
		s := pool100(c.free)
		if got := c.b.left(s, false); got != c.wantThin {
			t.Errorf("%s: %d bytes left for thin, want %d", c.what, got, c.wantThin)
		}
		if got := c.b.left(s, true); got != c.wantThick {
			t.Errorf("%s: %d bytes left for thick, want %d", c.what, got, c.wantThick)
		}
	}
}

// Concurrent callers never get the same bytes.
func TestBudgetConcurrency(t *testing.T) {
	b := &budget{ratio: 1}
	s := pool100(100 * gib)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for range 100 {
				if _, ok := b.promise(s, gib, i%2 == 0); ok && i%4 == 0 {
					b.markAllocated(gib)
					b.release(gib, true)
				}
			}
		})
	}
	wg.Wait()
	// The last release can follow the last attempt to promise.
	if got := b.promised(); got > 99*gib {
		t.Errorf("%d GiB are promised, want at most 99", got/gib)
	}
	for more := true; more; {
		_, more = b.promise(s, gib, false)
	}
	if got := b.promised(); got != 99*gib {
		t.Errorf("%d GiB can be promised, want 99", got/gib)
	}
}

func TestSizes(t *testing.T) {
	from := &origin{Size: 64 * mib, Content: volume.Raw}
	cases := []struct {
		what string
		p    plan
		from *origin
		want int64
		kind errs.Kind
	}{
		{"default", plan{}, nil, gib, ""},
		{"default under a limit", request(0, 10*mib+1), nil, 10 * mib, ""},
		{"rounded up", request(1, 0), nil, granule, ""},
		{"rounding hits the limit", request(1, 1), nil, 0, errs.OutOfRange},
		{"xfs has a minimum", fsRequest("xfs", 1, 0), nil, 300 * mib, ""},
		{"xfs minimum over the limit", fsRequest("xfs", 1, 100*mib), nil, 0, errs.OutOfRange},
		{"too large a file", request(1<<50, 0), nil, 0, errs.OutOfRange},
		{"as the source", plan{}, from, 64 * mib, ""},
		{"larger than the source", request(65*mib, 0), from, 65 * mib, ""},
		{"at least the source", request(mib, 0), from, 64 * mib, ""},
		{"limit below the source", request(mib, 63*mib), from, 0, errs.OutOfRange},
	}
	for _, c := range cases {
		got, err := c.p.chooseSize(c.from, 1<<44)
		if c.kind != "" {
			wantKind(t, err, c.what, c.kind)
		} else if err != nil || got != c.want {
			t.Errorf("%s: %d, %v; want %d", c.what, got, err, c.want)
		}
	}
}

func request(required, limit int64) plan {
	return plan{CreateRequest: volume.CreateRequest{Size: volume.SizeRange{Required: required, Limit: limit}}}
}

func fsRequest(fsType string, required, limit int64) plan {
	p := request(required, limit)
	p.Content, p.FSType = volume.Filesystem, fsType
	return p
}

func TestPlanRefuses(t *testing.T) {
	sound := volume.CreateRequest{Name: "v", Content: volume.Raw}
	cases := map[string]struct {
		change func(*volume.CreateRequest)
		kind   errs.Kind
	}{
		"no name":          {func(r *volume.CreateRequest) { r.Name = "" }, errs.Invalid},
		"long name":        {func(r *volume.CreateRequest) { r.Name = strings.Repeat("x", 129) }, errs.Invalid},
		"blank":            {func(r *volume.CreateRequest) { r.Content = volume.Blank }, errs.Invalid},
		"raw ext4":         {func(r *volume.CreateRequest) { r.FSType = "ext4" }, errs.Invalid},
		"ntfs":             {func(r *volume.CreateRequest) { r.Content, r.FSType = volume.Filesystem, "ntfs" }, errs.Invalid},
		"two sources":      {func(r *volume.CreateRequest) { r.Source = volume.Source{Volume: "a", Snapshot: "b"} }, errs.Invalid},
		"negative":         {func(r *volume.CreateRequest) { r.Size.Required = -1 }, errs.OutOfRange},
		"limit < required": {func(r *volume.CreateRequest) { r.Size = volume.SizeRange{Required: 2, Limit: 1} }, errs.OutOfRange},
		"parameter":        {func(r *volume.CreateRequest) { r.Parameters = map[string]string{"x": "y"} }, errs.Invalid},
	}
	for what, c := range cases {
		req := sound
		c.change(&req)
		_, err := planCreate(req)
		wantKind(t, err, what, c.kind)
	}
}

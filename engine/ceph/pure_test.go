package ceph

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

func TestIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := rapid.Int64Range(0, 1<<40).Draw(t, "pool")
		image := rapid.StringMatching(`[0-9a-f]{1,32}`).Draw(t, "image")
		name := hash(rapid.String().Draw(t, "name"))
		v := volumeID{pool: pool, hash: name, image: image}
		if got, ok := parseVolumeID(volume.ID(v.String())); !ok || got != v {
			t.Errorf("%s is parsed as %+v", v, got)
		}
		if got := VolumeID(pool, imageName(name), image); got != volume.ID(v.String()) {
			t.Errorf("the image of %s is that of %q", v, got)
		}
		s := snapshotID{pool: pool, image: image, hash: name, snap: rapid.Uint64().Draw(t, "snap")}
		if got, ok := parseSnapshotID(volume.SnapshotID(s.String())); !ok || got != s {
			t.Errorf("%s is parsed as %+v", s, got)
		}
		g := groupID{pool: pool, hash: name, uuid: rapid.StringMatching(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).Draw(t, "uuid")}
		if got, ok := parseGroupID(volume.GroupID(g.String())); !ok || got != g {
			t.Errorf("%s is parsed as %+v", g, got)
		}
		if got, ok := parseGroupName(pool, g.name()); !ok || got != g {
			t.Errorf("the RBD group of %s is that of %+v", g, got)
		}
		for _, id := range []string{v.String(), s.String(), g.String()} {
			if err := volume.CheckID(id); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestImagesOfOtherPrograms(t *testing.T) {
	name := hash("a")
	for _, image := range []string{"", name, "csi-vol-" + name, volumePrefix, volumePrefix + name + "0", volumePrefix + "../x", deletedPrefix + name, volumePrefix + strings.ToUpper(name)} {
		if id := VolumeID(2, image, "10b35e50c3b1"); id != "" {
			t.Errorf("image %q is that of volume %s", image, id)
		}
	}
	if id := VolumeID(2, imageName(name), ""); id != "" {
		t.Errorf("an image without an id is that of volume %s", id)
	}
}

func FuzzIDs(f *testing.F) {
	f.Add("vol-2-0123456789abcdef0123456789abcdef-10b35e50c3b1")
	f.Add("snap-2-10b35e50c3b1-0123456789abcdef0123456789abcdef-1f")
	f.Add("vol-02-0123456789abcdef0123456789abcdef-10b35e50c3b1")
	f.Fuzz(func(t *testing.T, text string) {
		if v, ok := parseVolumeID(volume.ID(text)); ok && v.String() != text {
			t.Errorf("%q is another spelling of %q", text, v)
		}
		if s, ok := parseSnapshotID(volume.SnapshotID(text)); ok && s.String() != text {
			t.Errorf("%q is another spelling of %q", text, s)
		}
	})
}

func TestHandles(t *testing.T) {
	const text = "0001-0009-rook-ceph-0000000000000002-b0285c97-a0ce-11eb-8c66-0242ac110002"
	want := handle{cluster: "rook-ceph", pool: 2, uuid: "b0285c97-a0ce-11eb-8c66-0242ac110002"}
	if h, ok := parseHandle(text); !ok || h != want {
		t.Errorf("%s is parsed as %+v, %t", text, h, ok)
	}
	for _, bad := range []volume.ID{
		"", "0001-", "0001-0009-rook", "0002" + volume.ID(text[4:]), "0001-0008" + volume.ID(text[9:]), "0001-0000--0000000000000002-b0285c97-a0ce-11eb-8c66-0242ac110002",
		text + "x", "0001-000A-rook-cephx-0000000000000002-b0285c97-a0ce-11eb-8c66-0242ac110002",
	} {
		if h, ok := parseHandle(bad); ok {
			t.Errorf("%s is accepted as %+v", bad, h)
		}
	}
}

func FuzzHandles(f *testing.F) {
	f.Add("0001-0009-rook-ceph-0000000000000002-b0285c97-a0ce-11eb-8c66-0242ac110002")
	f.Fuzz(func(t *testing.T, text string) {
		if h, ok := parseHandle(volume.ID(text)); ok && h.String() != text {
			t.Errorf("%q is another spelling of %q", text, h)
		}
	})
}

func TestMetadata(t *testing.T) {
	r := volumeRecord{Image: "a1", Name: "naïve\n", Content: volume.Filesystem, FSType: "xfs", FromVolume: "vol-x", Parameters: map[string]string{"pool": "p"}, Ephemeral: true}
	got, err := decodeVolume(encode(r), "a1")
	if err != nil || !cmp.Equal(*got, r) {
		t.Errorf("%+v is decoded as %+v, %v", r, got, err)
	}
	if got, err := decodeVolume("", "a1"); got != nil || err != nil {
		t.Errorf("no metadata: %+v, %v", got, err)
	}
	for what, c := range map[string]struct {
		name, id string
		isMaking bool
		want     bool
	}{
		"itself":                {imageName(hash(r.Name)), "a1", false, true},
		"renamed":               {"x", "a1", false, true},
		"migrated":              {imageName(hash(r.Name)), "b2", false, true},
		"migrated, deleted":     {deletedName("a1"), "b2", false, true},
		"a clone":               {imageName(hash("clone")), "b2", false, false},
		"a namesake being made": {imageName(hash(r.Name)), "b2", true, false},
		"a copy":                {"copy", "b2", false, false},
	} {
		if got := r.isOf(c.name, c.id, c.isMaking); got != c.want {
			t.Errorf("the record is that of an image that is %s: %t", what, got)
		}
	}
	if _, err := decodeVolume("{", "a1"); err == nil {
		t.Error("damaged metadata is accepted")
	}
	text := encode(snapRecord{Image: "a1", Name: "s"})
	if got := decodeSnap(text, "a1", hash("s")); got != "s" {
		t.Errorf("snapshot s is decoded as %q", got)
	}
	for _, other := range []string{decodeSnap(text, "b2", hash("s")), decodeSnap(text, "a1", hash("x")), decodeSnap("{", "a1", hash("s"))} {
		if other != "" {
			t.Errorf("metadata of something else is decoded as %q", other)
		}
	}
}

func TestParameters(t *testing.T) {
	pools := []string{"ssd", "hdd"}
	// Rook's example, but for the Secrets
	s, err := parseSettings(map[string]string{
		"clusterID": "rook-ceph", "pool": "hdd", "imageFormat": "2", "imageFeatures": "layering, exclusive-lock", "mounter": "rbd", "dataPool": "ec", "encrypted": "false",
	}, "rook-ceph", pools)
	if err != nil || !cmp.Equal(s, settings{pool: "hdd", dataPool: "ec", features: []string{"layering", "exclusive-lock"}}, cmp.AllowUnexported(settings{})) {
		t.Errorf("Rook's parameters: %+v, %v", s, err)
	}
	if s, err := parseSettings(nil, "c", pools[:1]); err != nil || s.pool != "ssd" || slices.Contains(s.features, "exclusive-lock") {
		t.Errorf("no parameters and one pool: %+v, %v", s, err)
	}
	if s, err := parseSettings(map[string]string{"imageFeatures": "exclusive-lock"}, "c", pools[:1]); err != nil || !slices.Contains(s.features, "layering") {
		t.Errorf("features without layering: %+v, %v", s, err)
	}
	for _, c := range []struct{ key, value, want string }{
		{"clusterID", "other", "rook-ceph"}, {"pool", "x", "--ceph-pool"}, {"mounter", "rbd-nbd", "only rbd"}, {"imageFormat", "1", "only 2"},
		{"encrypted", "true", "only false"}, {"mapOptions", "krbd:x", "node plugin"}, {"imageFeature", "layering", "did you mean imageFeatures"},
		{"zzz", "", "known are clusterID"}, {"imageFeatures", "journaling", "no others"}, {"imageFeatures", "fast-diff", "fast-diff needs object-map"},
		{"imageFeatures", "", "no others"},
	} {
		_, err := parseSettings(map[string]string{"pool": "ssd", c.key: c.value}, "rook-ceph", pools)
		if errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%q: %v, want Invalid with %q", c.key, c.value, err, c.want)
		}
	}
	if _, err := parseSettings(nil, "c", pools); errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), "pool is missing") {
		t.Errorf("no pool of two: %v", err)
	}
}

func TestErrors(t *testing.T) {
	for number, want := range map[syscall.Errno]errs.Kind{
		syscall.ETIMEDOUT: errs.Unavailable, syscall.ESHUTDOWN: errs.Unavailable, syscall.EDQUOT: errs.Exhausted, syscall.EPERM: errs.Denied,
		syscall.ENOENT: errs.NotFound, syscall.EINVAL: errs.Internal,
	} {
		err := explain(librados(number), "read %s", "x")
		if errs.KindOf(err) != want || !is(err, number) || !errors.Is(err, number) || !strings.HasPrefix(err.Error(), "read x: ") {
			t.Errorf("%v is explained as %v (%s), want %s", number, err, errs.KindOf(err), want)
		}
		if twice := explain(err, "outer"); errs.KindOf(twice) != want {
			t.Errorf("explained twice: %v (%s)", twice, errs.KindOf(twice))
		}
	}
	if err := explain(nil, "nothing"); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	<-ctx.Done()
	if err := late(ctx, "x"); errs.KindOf(err) != errs.Unavailable || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a passed deadline: %v", err)
	}
}

// librados is an error as go-ceph returns it.
type librados syscall.Errno

func (l librados) Error() string  { return fmt.Sprintf("rados: ret=-%d", int(l)) }
func (l librados) ErrorCode() int { return -int(l) }

func TestHealth(t *testing.T) {
	// of "ceph health detail --format json", release 16.2.15, shortened
	const report = `{"status":"HEALTH_ERR","checks":{
		"POOL_FULL":{"severity":"HEALTH_WARN","summary":{"message":"1 pool(s) full","count":1},"detail":[{"message":"pool 'ssd' is full (running out of quota)"}],"muted":false},
		"PG_AVAILABILITY":{"severity":"HEALTH_WARN","summary":{"message":"Reduced data availability: 1 pg inactive","count":2},"detail":[{"message":"pg 12.0 is stuck inactive for 60s, current state unknown, last acting []"}],"muted":false},
		"OSD_TOO_MANY_REPAIRS":{"severity":"HEALTH_WARN","summary":{"message":"Too many repaired reads on 1 OSDs","count":1},"detail":[{"message":"osd.2 had 11 reads repaired"}],"muted":false},
		"MON_DOWN":{"severity":"HEALTH_WARN","summary":{"message":"1/3 mons down, quorum a,b","count":1},"detail":[{"message":"mon.c (rank 2) addr 10.0.0.3 is down (out of quorum)"}],"muted":false},
		"POOL_APP_NOT_ENABLED":{"severity":"HEALTH_WARN","summary":{"message":"x","count":1},"detail":[],"muted":false}},"mutes":[]}`
	h, err := parseHealth([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		pools   []poolRef
		want    []string
		objects []string
	}{
		"full":     {[]poolRef{{"ssd", 1}}, []string{"MonitorsDown", "DataDegraded", "PoolFull"}, []string{"mon.c", "osd.2", "pool 'ssd' is full"}},
		"inactive": {[]poolRef{{"hdd", 12}}, []string{"MonitorsDown", "DataDegraded", "PGsInactive"}, []string{"mon.c", "osd.2", "pg 12.0"}},
		"other":    {[]poolRef{{"s", 2}}, []string{"MonitorsDown", "DataDegraded"}, []string{"mon.c", "osd.2"}},
	} {
		var got []string
		for i, x := range h.conditions(c.pools, "") {
			got = append(got, x.Reason)
			enginetest.CheckMessage(t, x, c.objects[i])
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
	if _, err := parseHealth([]byte("x")); err == nil {
		t.Error("text that is not JSON is accepted")
	}
}

// Ceph lists at most 51 placement groups of a check, of any pools.
func TestHealthOfManyPGs(t *testing.T) {
	details := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"message":"pg 12.%x is down, acting []"}`, i))
		}
		return strings.Join(all, ",")
	}
	for n, want := range map[int]string{3: "", 50: "", 51: "PG_AVAILABILITY: Reduced data availability: 300 pgs down"} {
		h, err := parseHealth(fmt.Appendf(nil, `{"checks":{"PG_AVAILABILITY":{"summary":{"message":"Reduced data availability: 300 pgs down"},"detail":[%s]}}}`, details(n)))
		if err != nil {
			t.Fatal(err)
		}
		var got string
		for _, x := range h.conditions([]poolRef{{"s", 2}}, "") {
			got += x.Message
		}
		if !strings.HasSuffix(got, want) || (got == "") != (want == "") {
			t.Errorf("%d listed PGs of another pool: %q, want %q", n, got, want)
		}
	}
}

func TestUsage(t *testing.T) {
	all, err := parseUsage([]byte(`{"stats":{},"pools":[
		{"name":"a","id":1,"stats":{"stored":10,"max_avail":100,"quota_bytes":0}},
		{"name":"b","id":2,"stats":{"stored":10,"max_avail":100,"quota_bytes":30}},
		{"name":"c","id":3,"stats":{"stored":40,"max_avail":100,"quota_bytes":30}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for _, u := range all {
		got = append(got, u.free())
	}
	if diff := cmp.Diff([]int64{100, 20, 0}, got); diff != "" {
		t.Error(diff)
	}
}

func TestGroupParameters(t *testing.T) {
	own := volume.ID("vol-2-0123456789abcdef0123456789abcdef-10b35e50c3b1")
	foreign := volume.ID(handle{cluster: "test", pool: 2, uuid: "01a1f972-c1d5-7cde-bac7-16431a08ef22"}.String())
	for _, test := range []struct {
		source           volume.ID
		parameters       map[string]string
		byMember, failed bool
	}{
		{own, nil, false, false},
		{own, map[string]string{"clusterID": "test", "consistency": "group"}, false, false},
		{own, map[string]string{"consistency": "member"}, true, false},
		{own, map[string]string{"consistency": "volume"}, false, true},
		{own, map[string]string{"clusterID": "other"}, false, true},
		{own, map[string]string{"pool": "a"}, false, true},
		{foreign, nil, false, true},
	} {
		byMember, err := checkGroup(volume.GroupRequest{Name: "g", Sources: []volume.ID{test.source}, Parameters: test.parameters}, "test")
		if byMember != test.byMember || (err != nil) != test.failed {
			t.Errorf("%v of %s: %t, %v", test.parameters, test.source, byMember, err)
		}
	}
}

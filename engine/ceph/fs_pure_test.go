package ceph

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

func TestFSIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fs := rapid.Int64Range(0, 1<<32).Draw(t, "fs")
		uuid := rapid.StringMatching(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).Draw(t, "uuid")
		name := hash(rapid.String().Draw(t, "name"))
		v := fsID{fs: fs, hash: name, uuid: withoutDashes(uuid)}
		if got, ok := parseFSID(volume.ID(v.String())); !ok || got != v {
			t.Errorf("%s is parsed as %+v", v, got)
		}
		s := fsSnapshotID{fs: fs, volume: name, hash: name, created: rapid.Int64Min(0).Draw(t, "created")}
		if got, ok := parseFSSnapshotID(volume.SnapshotID(s.String())); !ok || got != s {
			t.Errorf("%s is parsed as %+v", s, got)
		}
		for _, id := range []string{v.String(), s.String()} {
			if err := volume.CheckID(id); err != nil {
				t.Error(err)
			}
		}
	})
}

func FuzzFSIDs(f *testing.F) {
	f.Add("fsvol-1-0123456789abcdef0123456789abcdef-0123456789abcdef0123456789abcdef")
	f.Add("fssnap-1-0123456789abcdef0123456789abcdef-0123456789abcdef0123456789abcdef-18eb9a4f86c0627b")
	f.Fuzz(func(t *testing.T, text string) {
		if v, ok := parseFSID(volume.ID(text)); ok && v.String() != text {
			t.Errorf("%q is parsed as %s", text, v)
		}
		if s, ok := parseFSSnapshotID(volume.SnapshotID(text)); ok && s.String() != text {
			t.Errorf("%q is parsed as %s", text, s)
		}
	})
}

func TestPlanFS(t *testing.T) {
	for name, c := range map[string]struct {
		req   volume.CreateRequest
		want  errs.Kind // empty: valid
		shows bool
	}{
		"ceph-csi's":                         {req: volume.CreateRequest{Parameters: map[string]string{"clusterID": "c", "fsName": "f", "pool": "p", "mounter": "kernel", "encrypted": "false"}}},
		"the type":                           {req: volume.CreateRequest{FSType: "ceph"}},
		"read-only, from a snapshot":         {req: volume.CreateRequest{ReadOnly: true, Source: volume.Source{Snapshot: "s"}}, shows: true},
		"read-only, from a volume":           {req: volume.CreateRequest{ReadOnly: true, Source: volume.Source{Volume: "v"}}},
		"from a snapshot":                    {req: volume.CreateRequest{Source: volume.Source{Snapshot: "s"}}},
		"read-only from a snapshot, to show": {req: volume.CreateRequest{ReadOnly: true, Source: volume.Source{Snapshot: "s"}, Parameters: map[string]string{"backingSnapshot": "true"}}, shows: true},
		"from a snapshot, to show":           {req: volume.CreateRequest{Source: volume.Source{Snapshot: "s"}, Parameters: map[string]string{"backingSnapshot": "true"}}, want: errs.Invalid},
		"read-only from a snapshot, to copy": {req: volume.CreateRequest{ReadOnly: true, Source: volume.Source{Snapshot: "s"}, Parameters: map[string]string{"backingSnapshot": "false"}}},
		"block":                              {req: volume.CreateRequest{Content: volume.Raw}, want: errs.Invalid},
		"ext4":                               {req: volume.CreateRequest{FSType: "ext4"}, want: errs.Invalid},
		"another cluster":                    {req: volume.CreateRequest{Parameters: map[string]string{"clusterID": "d"}}, want: errs.Invalid},
		"another file system":                {req: volume.CreateRequest{Parameters: map[string]string{"fsName": "g"}}, want: errs.Invalid},
		"fuse":                               {req: volume.CreateRequest{Parameters: map[string]string{"mounter": "fuse"}}, want: errs.Invalid},
		"encrypted":                          {req: volume.CreateRequest{Parameters: map[string]string{"encrypted": "true"}}, want: errs.Invalid},
		"mount options":                      {req: volume.CreateRequest{Parameters: map[string]string{"kernelMountOptions": "noatime"}}, want: errs.Invalid},
		"misspelled":                         {req: volume.CreateRequest{Parameters: map[string]string{"backingsnapshot": "true"}}, want: errs.Invalid},
		"neither true nor false":             {req: volume.CreateRequest{Parameters: map[string]string{"backingSnapshot": "yes"}}, want: errs.Invalid},
		"backing without a source":           {req: volume.CreateRequest{Parameters: map[string]string{"backingSnapshot": "true"}}, want: errs.Invalid},
		"no pool":                            {req: volume.CreateRequest{Parameters: map[string]string{"pool": ""}}, want: errs.Invalid},
	} {
		c.req.Name = "v"
		if c.req.Content == "" {
			c.req.Content = volume.Filesystem
		}
		p, err := planFS(c.req, "c", "f")
		if c.want == "" && err != nil || c.want != "" && !errors.Is(err, c.want) || err == nil && p.showsSnapshot() != c.shows {
			t.Errorf("%s: %v, shows its snapshot %t; want %s, %t", name, err, p.showsSnapshot(), c.want, c.shows)
		}
	}
}

func TestFSRecordsOfOthers(t *testing.T) {
	own := fsRecord{UUID: "bc97a497-3114-492f-9f44-d2b1f271b4eb", Name: "v", Copy: &fsCopy{From: "a", Snap: "s", Size: 1}}
	text, err := json.Marshal(own)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeFS(text, own.UUID)
	if diff := cmp.Diff(&own, got); diff != "" || err != nil {
		t.Errorf("%v, %s", err, diff)
	}
	if got, err := decodeFS(text, "00000000-0000-0000-0000-000000000000"); got != nil || err != nil {
		t.Errorf("the record of an earlier volume of the name: %+v, %v", got, err)
	}
	if _, err := decodeFS([]byte("{"), own.UUID); err == nil {
		t.Error("a damaged record is accepted")
	}
	snap := fsSnapRecord{UUID: own.UUID, Name: "s", Size: 1}
	if got, ok := decodeFSSnap([]byte(encode(snap)), hash("s")); !ok || got != snap {
		t.Errorf("%+v, %t", got, ok)
	}
	for _, text := range []string{"", "{}", encode(fsSnapRecord{UUID: own.UUID, Name: "other"}), encode(fsSnapRecord{UUID: "../..", Name: "s"})} {
		if got, ok := decodeFSSnap([]byte(text), hash("s")); ok {
			t.Errorf("%q is the record of a snapshot: %+v", text, got)
		}
	}
}

func TestFSProgress(t *testing.T) {
	for _, c := range []struct {
		total, done int64
		want        volume.Progress
	}{
		{100, 0, volume.Progress{Total: 100}}, {100, 40, volume.Progress{Done: 40, Total: 100}},
		{100, 100, volume.Progress{Done: 100, Total: 101}}, {0, 0, volume.Progress{Total: 1}}, {0, -1, volume.Progress{Total: 1}},
	} {
		if got := (fsCopy{Total: c.total}).progress(c.done); got != c.want || !got.Running() {
			t.Errorf("%d of %d: %+v, want %+v", c.done, c.total, got, c.want)
		}
	}
}

func TestChooseFS(t *testing.T) {
	const one = `{"name":"files","metadata_pool":"files_meta","metadata_pool_id":2,"data_pool_ids":[3],"data_pools":["files_data"]}`
	const two = one + `,{"name":"b","metadata_pool":"m","data_pool_ids":[4],"data_pools":["d"]}`
	for _, c := range []struct {
		list, name, want string
		err              errs.Kind
	}{
		{one, "", "files", ""}, {two, "b", "b", ""}, {two, "", "", errs.Invalid}, {one, "x", "", errs.NotFound}, {"", "", "", errs.NotFound},
		{`{"name":"a","data_pools":["d"]}`, "", "", errs.Internal},
	} {
		got, err := chooseFS([]byte("["+c.list+"]"), c.name)
		if got.Name != c.want || (c.err == "") != (err == nil) || err != nil && errs.KindOf(err) != c.err {
			t.Errorf("%q of %s: %+v, %v", c.name, c.list, got, err)
		}
	}
}

// fsDump is a part of the output of "fs dump" of Ceph 16.2.15.
const fsDump = `{"standbys":[{"name":"c","rank":-1,"state":"up:standby"}],"filesystems":[{"mdsmap":{"in":[0],"up":{"mds_0":4153},
"info":{"gid_4153":{"gid":4153,"name":"a","rank":0,"state":"%s","addr":"127.0.0.1:16811/677015421"},
"gid_4160":{"gid":4160,"name":"b","rank":-1,"state":"up:standby-replay","addr":"127.0.0.1:16813/1"}},"fs_name":"files"},"id":1}]}`

func TestParseServers(t *testing.T) {
	want := []mdsServer{{Name: "a", Addr: netip.MustParseAddrPort("127.0.0.1:16811")}}
	got, err := parseServers(fmt.Appendf(nil, fsDump, "up:active"), "files")
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" || err != nil {
		t.Errorf("%v, %s", err, diff)
	}
	for text, kind := range map[string]errs.Kind{
		fmt.Sprintf(fsDump, "up:replay"): errs.Unavailable, "{}": errs.Unavailable, "[": errs.Internal,
		strings.Replace(fmt.Sprintf(fsDump, "up:active"), `"in":[0]`, `"in":[0,1]`, 1): errs.Unavailable,
	} {
		if got, err := parseServers([]byte(text), "files"); errs.KindOf(err) != kind || got != nil {
			t.Errorf("%s: %+v, %v; want %s", text, got, err, kind)
		}
	}
}

// Of a kernel, and of libcephfs, as Ceph 16.2.15 lists them.
const sessionList = `[{"id":4187,"entity":{"name":{"type":"client","num":4187},"addr":{"type":"v1","addr":"198.51.100.7:0","nonce":2026183031}},"state":"open",
"inst":"client.4187 v1:198.51.100.7:0/2026183031","client_metadata":{"entity_id":"node","hostname":"n1","kernel_version":"6.1.0","root":"/volumes/csi/a/b"}},
{"id":4163,"entity":{"addr":{"type":"any","addr":"[2001:db8::1]:0","nonce":1}},"client_metadata":{"entity_id":"x","hostname":"vm","root":"/"}}]`

func TestParseSessions(t *testing.T) {
	all, err := parseSessions([]byte(sessionList), mdsServer{Name: "a"})
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	s := all[0]
	if s.Root != "/volumes/csi/a/b" || s.User != "node" || s.Instance != "198.51.100.7:0/2026183031" || s.Client.Client != 4187 || s.Client.Nonce != 2026183031 {
		t.Errorf("%+v", s)
	}
	if got := all[1].session(); got.ID != "mds.a/client.4163" || got.Client.Addr() != netip.MustParseAddr("2001:db8::1") {
		t.Errorf("%+v", got)
	}
	for _, text := range []string{"{", `[{"id":1}]`, `[{"id":1,"entity":{"addr":{"addr":"x:0","nonce":1}}}]`} {
		if all, err := parseSessions([]byte(text), mdsServer{}); err == nil {
			t.Errorf("%s: %+v", text, all)
		}
	}
}

func FuzzParseSessions(f *testing.F) {
	f.Add([]byte(sessionList))
	f.Add(fmt.Appendf(nil, fsDump, "up:active"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := parseSessions(text, mdsServer{Name: "a"})
		for _, s := range all {
			if err != nil || !s.Client.Addr.IsValid() {
				t.Errorf("%q: %+v, %v", text, s, err)
			}
		}
		if servers, err := parseServers(text, "files"); (len(servers) == 0) == (err == nil) {
			t.Errorf("%q: %+v, %v", text, servers, err)
		}
	})
}

func TestParseSmall(t *testing.T) {
	for text, want := range map[string]int64{"1795696488.513615375": 1795696488513615375, "0.000000001": 1, "1.5": -1, "1": -1, "": -1, "-1.000000000": -1} {
		if got, err := parseSnapTime(text); (err == nil) != (want >= 0) || err == nil && got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for text, want := range map[string]int64{"16777216": 16777216, "0\x00": 0, "": -1, "x": -1} {
		if got, err := parseNumber("a", text); (err == nil) != (want >= 0) || err == nil && got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	status, err := parseCloneStatus([]byte(`{"status":{"state":"canceled","source":{"volume":"files","subvolume":"a","snapshot":"s"},"failure":{"errno":"4","error_msg":"user interrupted clone operation"}}}`))
	if err != nil || status.State != cloneCanceled || status.Failure.Message == "" || status.Source.Snapshot != "s" {
		t.Errorf("%+v, %v", status, err)
	}
	if _, err := parseCloneStatus([]byte(`{}`)); err == nil {
		t.Error("a status without a state is accepted")
	}
}

// Checks of a file system do not concern images, nor other file systems.
func TestHealthOfFS(t *testing.T) {
	report, err := parseHealth([]byte(`{"checks":{"MDS_ALL_DOWN":{"summary":{"message":"1 filesystem is offline"},"detail":[{"message":"fs files is offline because no MDS is active for it."}]},
"MDS_SLOW_REQUEST":{"summary":{"message":"1 MDSs report slow requests"},"detail":[{"message":"mds.a(mds.0): 1 slow requests are blocked > 30 secs"}]},
"OSD_FULL":{"summary":{"message":"full"},"detail":[]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	readOnly, err := parseHealth([]byte(`{"checks":{"MDS_READ_ONLY":{"summary":{"message":"1 MDSs are read only"},"detail":[{"message":"mds.a(mds.0): MDS in read-only mode"}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if all := readOnly.conditions(nil, "files"); len(all) != 1 || all[0].Severity != volume.Inaccessible {
		t.Errorf("of a read-only file system: %+v", all)
	}
	for fs, want := range map[string]string{
		"": "PoolFull", "files": "MetadataServersDown MetadataServersSlow PoolFull", "file": "MetadataServersSlow PoolFull",
	} {
		got := map[string]bool{}
		for _, c := range report.conditions(nil, fs) {
			got[c.Reason] = true
			enginetest.CheckMessage(t, c, "")
		}
		if have := strings.Join(slices.Sorted(maps.Keys(got)), " "); have != want {
			t.Errorf("of file system %q: %s, want %s", fs, have, want)
		}
	}
}

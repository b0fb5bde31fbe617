package access_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	nqn  = "nqn.2016-06.io.spdk:cnode1"
	uuid = "0198a6b2-7c1e-7b5e-9d0a-00000000000a"
)

type kv = map[string]string

func endpoints(all ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range all {
		out = append(out, netip.MustParseAddrPort(s))
	}
	return out
}

var equalAddrs = cmp.Options{
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmpopts.EquateEmpty(),
}

func TestDialects(t *testing.T) {
	one := access.NVMe{Transport: "tcp", NQN: nqn, Paths: endpoints("192.0.2.1:4420")}
	with := func(edit func(*access.NVMe)) access.NVMe { n := one; edit(&n); return n }
	for name, c := range map[string]struct {
		contexts []kv
		want     access.Access
	}{
		"nvidia-block":                          {[]kv{{"targetType": "TCP", "targetAddr": "192.0.2.1", "targetPort": "4420", "nqn": nqn}}, one},
		"alias of NVIDIA and no type elsewhere": {[]kv{{"targetType": "nvda_tcp", "targetAddr": "192.0.2.1", "nqn": nqn}, {"nv-volumeName": "x"}}, one},
		"no type":                               {[]kv{{"targetAddr": "192.0.2.1:4420", "nqn": nqn}}, one},
		"spdk-csi carries more":                 {[]kv{{"targetType": "rdma", "targetAddr": "192.0.2.1", "targetPort": "4420", "nqn": nqn, "model": "m", "lvolSize": "8", "lvstore": "l"}}, with(func(n *access.NVMe) { n.Transport = "rdma" })},
		"names of SPDK in any case":             {[]kv{{"TrType": "tcp", "TRADDR": "192.0.2.1", "trsvcid": "4420", "subnqn": nqn}}, one},
		"simplyblock": {[]kv{{
			"name": "n", "uuid": uuid, "nqn": nqn, "model": "m", "nsId": "3", "reconnectDelay": "2", "ctrlLossTmo": "60", "nrIoQueues": "4", "targetType": "tcp",
			"connections": `[{"ip":"192.0.2.1","port":4420},{"ip":"192.0.2.2","port":"4421"},{"ip":"192.0.2.1","port":4420}]`,
		}}, access.NVMe{
			Transport: "tcp", NQN: nqn, UUID: uuid, NSID: 3, IOQueues: 4, Paths: endpoints("192.0.2.1:4420", "192.0.2.2:4421"),
			Timeouts: access.Timeouts{Loss: access.Sec(60), Delay: access.Sec(2)},
		}},
		"IPv6": {[]kv{{"nqn": nqn, "targetAddr": "[2001:db8::1]:9, 2001:db8::2,[2001:db8::3],::ffff:192.0.2.1", "targetPort": "8"}},
			with(func(n *access.NVMe) {
				n.Paths = endpoints("[2001:db8::1]:9", "[2001:db8::2]:8", "[2001:db8::3]:8", "192.0.2.1:8")
			})},
		"later address wins over an earlier list": {[]kv{{"nqn": nqn, "connections": `[{"ip":"192.0.2.9","port":1}]`}, {"targetAddr": "192.0.2.1"}}, one},
		"later list wins over an earlier address": {[]kv{{"nqn": nqn, "targetAddr": "192.0.2.9", "targetPort": "5"}, {"connections": `[{"ip":"192.0.2.1"}]`}}, one},
		"a later alias wins":                      {[]kv{{"nqn": nqn, "targetAddr": "192.0.2.9"}, {"traddr": "192.0.2.1"}}, one},
		"an empty value says nothing":             {[]kv{{"nqn": nqn, "targetAddr": "192.0.2.1"}, {"targetAddr": "", "nsId": ""}}, one},
		"everything": {[]kv{{
			"targetType": "tcp", "nqn": nqn, "targetAddr": "192.0.2.1", "NGUID": "0198A6B2-7c1e7b5e9d0a00000000000a", "hostnqn": "nqn.2014-08.org.x:h",
			"hdgst": "true", "dataDigest": "1", "dhchapKey": "node-a.key", "dhchapCtrlrKey": "target", "psk": "tls", "ctrlLossTmo": "-1", "fastIOFailTmo": "5",
		}}, with(func(n *access.NVMe) {
			n.NGUID, n.HostNQN, n.HeaderDigest, n.DataDigest = "0198a6b27c1e7b5e9d0a00000000000a", "nqn.2014-08.org.x:h", true, true
			n.DHChapKey, n.DHChapCtrlrKey, n.TLSKey = "node-a.key", "target", "tls"
			n.Timeouts = access.Timeouts{Loss: access.Sec(-1), FastFail: access.Sec(5)}
		})},
		"nvidia-fs": {[]kv{{"Server": "nfs.example.com", "SHARE": "/export/", "subdir": "a/b", "mountOptions": "nfsvers=4.1, hard"}},
			access.NFS{Server: "nfs.example.com", Share: "/export", SubDir: "a/b", Options: []string{"nfsvers=4.1", "hard"}}},
		"NFS over IPv6": {[]kv{{"targetType": "nfs", "server": "[2001:db8::1]", "share": "/"}}, access.NFS{Server: "2001:db8::1", Share: "/"}},
		"ceph-csi image": {[]kv{{"clusterID": "c", "pool": "p", "imageName": "i", "radosNamespace": "n", "imageFeatures": "layering", "journalPool": "p"}},
			access.RBD{Ceph: access.Ceph{ClusterID: "c"}, Pool: "p", Namespace: "n", Image: "i"}},
		"image by monitors": {[]kv{{"targetType": "RBD", "monitors": "192.0.2.1,[2001:db8::1]:3300", "pool": "p", "image": "i", "user": "client.k", "cephKey": "k1"}},
			access.RBD{Ceph: access.Ceph{Monitors: endpoints("192.0.2.1:0", "[2001:db8::1]:3300"), User: "k", Key: "k1"}, Pool: "p", Image: "i"}},
		"ceph-csi file system": {[]kv{{"clusterID": "c", "fsName": "fs", "subvolumeName": "s", "subvolumePath": "/volumes/csi/s/u"}},
			access.CephFS{Ceph: access.Ceph{ClusterID: "c"}, FS: "fs", Path: "/volumes/csi/s/u"}},
		"ceph-csi static": {[]kv{{"clusterID": "c", "fsName": "fs", "rootPath": "/x", "staticVolume": "true"}},
			access.CephFS{Ceph: access.Ceph{ClusterID: "c"}, FS: "fs", Path: "/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := testkit.Value(access.Decode(c.contexts...))(t)
			testkit.Diff(t, "result", c.want, got, equalAddrs)
			if again, err := access.Decode(access.Encode(got)); err != nil || !access.Equal(again, got) {
				t.Errorf("comes back as %+v, %v", again, err)
			}
		})
	}
}

// Each message names the key and the relevant values.
func TestRefusals(t *testing.T) {
	nvme := kv{"targetType": "tcp", "targetAddr": "192.0.2.1", "targetPort": "4420", "nqn": nqn}
	nfs := kv{"targetType": "nfs", "server": "s", "share": "/x"}
	rbd := kv{"targetType": "rbd", "clusterID": "c", "pool": "p", "imageName": "i"}
	fs := kv{"targetType": "cephfs", "clusterID": "c", "fsName": "f", "subvolumePath": "/x"}
	for _, c := range []struct {
		base, overlay kv
		words         string
	}{
		{nvme, kv{"targetType": "nfs"}, `"tcp" "nfs" contradict`},
		{nvme, kv{"targetType": "file"}, `"tcp" "file" contradict`},
		{nvme, kv{"nqn": nqn + "x"}, nqn + `" ` + nqn + `x" different volumes`},
		{kv{"nsId": "1", "nqn": nqn, "targetAddr": "192.0.2.1"}, kv{"nsid": "2"}, `nsId "1" "2"`},
		{nil, kv{"nqn": nqn, "subnqn": "nqn.2016-06.io.spdk:b", "targetAddr": "192.0.2.1"}, `nqn subnqn contradict cnode1 :b`},
		{nvme, kv{"nsId": "0"}, `nsId "0"`},
		{nvme, kv{"nsId": "4294967295"}, `4294967295`},
		{nvme, kv{"uuid": "x"}, `uuid "x"`},
		{nvme, kv{"nguid": "12"}, `nguid "12" 32`},
		{nvme, kv{"targetAddr": "target.example.com"}, `"target.example.com" not IP`},
		{nvme, kv{"targetAddr": "0.0.0.0"}, `"0.0.0.0"`},
		{nvme, kv{"targetAddr": "fe80::1%eth0"}, `zone`},
		{nvme, kv{"targetAddr": "192.0.2.1,"}, `targetAddr ""`},
		{nvme, kv{"targetAddr": "192.0.2.1:99"}, `192.0.2.1:99 4420 contradict`},
		{nvme, kv{"targetPort": "0"}, `targetPort "0"`},
		{nvme, kv{"targetPort": "65536"}, `"65536"`},
		{nvme, kv{"connections": "[]"}, `connections JSON`},
		{nvme, kv{"connections": "{"}, `connections JSON`},
		{nvme, kv{"connections": `[{"ip":"x"}]`}, `connections "x"`},
		{nil, kv{"nqn": nqn, "targetAddr": "192.0.2.1", "connections": `[{"ip":"192.0.2.2"}]`}, `192.0.2.1:4420 192.0.2.2:4420 contradict`},
		{nil, kv{"nqn": nqn}, `targetAddr is missing`},
		{nil, kv{"targetAddr": "192.0.2.1"}, `nqn is missing`},
		{nil, kv{"targetAddr": "192.0.2.1", "nqn": "iqn.x"}, `"iqn.x" not an NQN`},
		{nil, kv{"targetAddr": "192.0.2.1", "nqn": "nqn.2016-06." + strings.Repeat("x", 223)}, `223`},
		{nvme, kv{"targetPrt": "1"}, `"targetPrt" did you mean targetPort`},
		{nvme, kv{"ctrlLossTom": "1"}, `did you mean ctrlLossTmo`},
		{nvme, kv{"ctrlLossTmo": "0", "reconnectDelay": "1"}, `ctrlLossTmo 0 reconnectDelay 1`},
		{nvme, kv{"ctrlLossTmo": "5", "reconnectDelay": "0"}, `ctrlLossTmo 5 reconnectDelay`},
		{nvme, kv{"ctrlLossTmo": "5", "reconnectDelay": "6"}, `reconnectDelay 6 longer ctrlLossTmo 5`},
		{nvme, kv{"ctrlLossTmo": "5", "fastIOFailTmo": "6"}, `fastIOFailTmo 6 ctrlLossTmo 5`},
		{nvme, kv{"reconnectDelay": "5", "fastIOFailTmo": "4"}, `reconnectDelay 5 fastIOFailTmo 4`},
		{nvme, kv{"reconnectDelay": "0", "fastIOFailTmo": "4"}, `fastIOFailTmo 4`},
		{nvme, kv{"ctrlLossTmo": "-2"}, `-2`},
		{nvme, kv{"ctrlLossTmo": "1.5"}, `ctrlLossTmo "1.5"`},
		{nvme, kv{"nrIoQueues": "0"}, `nrIoQueues "0"`},
		{nvme, kv{"hdgst": "on"}, `headerDigest "on"`},
		{nvme, kv{"hostNQN": "me"}, `hostNQN "me"`},
		{nvme, kv{"dhchapCtrlrKey": "k"}, `dhchapCtrlrKey requires dhchapKey`},
		{nvme, kv{"targetType": "rdma", "tlsKey": "k"}, `tlsKey rdma`},
		{nfs, kv{"share": "x"}, `share`},
		{kv{"targetType": "nfs", "server": "s"}, nil, `share is missing`},
		{kv{"targetType": "nfs", "share": "/x"}, kv{"server": "-o"}, `server "-o"`},
		{nfs, kv{"subdir": "../x"}, `subdir "../x"`},
		{nfs, kv{"mountoptions": "a b"}, `mountoptions "a b"`},
		{nfs, kv{"mountoption": "a"}, `did you mean mountoptions`},
		{kv{"targetType": "nfs", "server": "s", "share": "/x/../y"}, nil, `share "/x/../y"`},
		{kv{"targetType": "rbd", "clusterID": "c", "pool": "p"}, nil, `imageName is missing`},
		{kv{"targetType": "rbd", "pool": "p", "imageName": "i"}, nil, `clusterID is missing`},
		{kv{"targetType": "rbd", "clusterID": "c", "pool": "p/q", "imageName": "i"}, nil, `pool "p/q" '/'`},
		{rbd, kv{"imageName": "j"}, `imageName "i" "j" different volumes`},
		{rbd, kv{"monitors": "mon"}, `monitors "mon"`},
		{fs, kv{"rootPath": "/y"}, `subvolumePath "/x" "/y"`},
		{kv{"targetType": "cephfs", "clusterID": "c", "subvolumePath": "x"}, nil, `subvolumePath "x"`},
		{kv{"targetType": "iscsi", "targetAddr": "192.0.2.1"}, nil, `targetType "iscsi" known`},
	} {
		got, err := access.Decode(c.base, c.overlay)
		if err == nil {
			t.Errorf("%v, %v: Decode = %+v, want an error with %s", c.base, c.overlay, got, c.words)
			continue
		}
		for word := range strings.FieldsSeq(c.words) {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%v, %v: %q does not name %s", c.base, c.overlay, err, word)
			}
		}
	}
}

// A secret key in any place is refused and never shown.
func TestNoSecretInMessages(t *testing.T) {
	nvme := kv{"targetType": "tcp", "targetAddr": "192.0.2.1", "nqn": nqn}
	rbd := kv{"targetType": "rbd", "clusterID": "c", "pool": "p", "imageName": "i"}
	nfs := kv{"targetType": "nfs", "server": "s", "share": "/x"}
	hex := strings.Repeat("0123456789abcdef", 4)
	for _, secret := range []string{
		"DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:", "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
		"AQBvN8ljAAAAABAA8bDh6Zk3v0h0cVb1yXw1Bg==", hex, hex[:32], "pass word", "with/slash",
	} {
		for _, c := range []struct {
			base kv
			keys []string
		}{
			{nvme, []string{"dhchapKey", "dhchap_ctrlr_key", "psk", "tlsKey"}}, {rbd, []string{"cephKey"}},
		} {
			for _, key := range c.keys {
				_, err := access.Decode(c.base, kv{key: secret})
				if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "not shown") {
					t.Errorf("%s: %v", key, err)
				}
			}
		}
		for _, option := range []string{"secret=", "Password=", "key="} {
			if _, err := access.Decode(nfs, kv{"mountoptions": "hard," + option + secret}); err == nil || strings.Contains(err.Error(), secret) {
				t.Errorf("mountoptions: %v", err)
			}
		}
	}
	misplaced := "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
	for _, key := range []string{"targetAddr", "targetPort", "nsId", "uuid", "nguid", "hostNQN", "ctrlLossTmo", "nrIoQueues", "hdgst", "connections", "targetType"} {
		_, err := access.Decode(kv{"nqn": nqn, "targetAddr": "192.0.2.1", key: misplaced})
		if err == nil || strings.Contains(err.Error(), "ia6z") {
			t.Errorf("%s: %v", key, err)
		}
	}
	if _, err := access.Decode(kv{"nqn": nqn, "targetAddr": "192.0.2.1", "dhchapKey": misplaced, "dhchap_key": "a"}); err == nil || strings.Contains(err.Error(), "ia6z") {
		t.Errorf("contradiction: %v", err)
	}
	// A bare secret has no recognizable form, so conflicting values are not
	// shown.
	if _, err := access.Decode(kv{"nqn": nqn, "targetAddr": "192.0.2.1", "psk": hex, "tlsKey": "a"}); err == nil || strings.Contains(err.Error(), hex) {
		t.Errorf("contradiction: %v", err)
	}
}

func TestEqual(t *testing.T) {
	n := access.NVMe{Transport: "tcp", NQN: nqn, Paths: endpoints("192.0.2.1:4420", "192.0.2.2:4420")}
	same, other := n, n
	same.Paths = endpoints("192.0.2.1:4420", "192.0.2.2:4420")
	other.Paths = endpoints("192.0.2.2:4420", "192.0.2.1:4420")
	for _, c := range []struct {
		a, b access.Access
		want bool
	}{
		{nil, nil, true}, {n, nil, false}, {nil, n, false}, {n, same, true}, {n, other, false},
		{access.File{Pool: pool, Name: "a"}, access.File{Pool: pool, Name: "a"}, true},
		{access.File{Pool: pool, Name: "a"}, n, false},
		{access.NFS{Server: "s", Share: "/"}, access.NFS{Server: "s", Share: "/", Options: []string{}}, true},
	} {
		if got := access.Equal(c.a, c.b); got != c.want {
			t.Errorf("Equal(%v, %v) = %t", c.a, c.b, got)
		}
	}
}

func TestHostNQN(t *testing.T) {
	// Access lists contain these NQNs, which must never change.
	if got := access.HostNQN("node-1"); got != golden {
		t.Errorf("HostNQN = %s", got)
	}
	if access.HostNQN("node-1") == access.HostNQN("node-2") {
		t.Error("two nodes have one host NQN")
	}
}

// The kernel demands one host ID for each host NQN, and another one for another.
func TestHostID(t *testing.T) {
	for nqn, want := range map[string]string{
		golden:                  "a88ad4e0-e383-577f-8051-f0dd5435882a",
		"nqn.2024-01.example:a": "",
		"nqn.2024-01.example:b": "",
	} {
		got := access.HostID(nqn)
		if want != "" && got != want || len(got) != 36 || got == access.HostID(nqn+"x") || got != access.HostID(nqn) {
			t.Errorf("the host ID of %s is %s", nqn, got)
		}
	}
}

const golden = "nqn.2014-08.org.nvmexpress:uuid:a88ad4e0-e383-577f-8051-f0dd5435882a"

func TestSameVolume(t *testing.T) {
	nvme := func(change func(*access.NVMe)) access.NVMe {
		n := access.NVMe{Transport: "tcp", NQN: "nqn.2016-06.io.spdk:a", UUID: "0c5b9f0e-8b7a-4d52-9d1e-3a1f2b3c4d5e", Paths: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4420")}}
		change(&n)
		return n
	}
	same := nvme(func(*access.NVMe) {})
	for name, c := range map[string]struct {
		other access.Access
		want  bool
	}{
		"itself":            {same, true},
		"another address":   {nvme(func(n *access.NVMe) { n.Paths[0] = netip.MustParseAddrPort("192.0.2.2:4420") }), true},
		"a setting":         {nvme(func(n *access.NVMe) { n.IOQueues = 3 }), true},
		"without the uuid":  {nvme(func(n *access.NVMe) { n.UUID = "" }), true},
		"another uuid":      {nvme(func(n *access.NVMe) { n.UUID = "1c5b9f0e-8b7a-4d52-9d1e-3a1f2b3c4d5e" }), false},
		"another subsystem": {nvme(func(n *access.NVMe) { n.NQN = "nqn.2016-06.io.spdk:b" }), false},
		"another kind":      {access.RBD{Pool: "p", Image: "i"}, false},
		"nothing":           {nil, false},
	} {
		if got := access.SameVolume(same, c.other); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
	// A publish context has the image id after a migration.
	old := access.RBD{Ceph: access.Ceph{ClusterID: "c"}, Pool: "p", Image: "i", ImageID: "1"}
	migrated := old
	migrated.ImageID = "2"
	if got, err := access.Decode(access.Encode(old), access.Update(old, migrated)); err != nil || !access.Equal(got, migrated) || !access.SameVolume(old, migrated) || access.Update(old, old) != nil {
		t.Errorf("a migrated image is %+v, %v", got, err)
	}
	a, b := access.File{Pool: "p", Name: "a"}, access.File{Pool: "p", Name: "b"}
	if !access.SameVolume(a, a) || access.SameVolume(a, b) {
		t.Error("files are compared by pool and name")
	}
}

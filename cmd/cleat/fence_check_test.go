package main

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fencev1 "github.com/cleatproject/cleat/api/fence/v1"
	"github.com/cleatproject/cleat/fence/fencetest"
)

const sshd = "sshd (process 9) as descriptor 4"

func covering(d *fencetest.Driver) {
	d.Coverage = &fencev1.GetCoverageResponse{Enforcers: []*fencev1.EnforcerCoverage{
		{
			Enforcer: "host",
			Servers: []*fencev1.Server{
				{Address: "[::]:3260", Holder: "no visible process: a server in the kernel"},
				{Address: "[::]:6800", Holder: "ceph-osd (process 5) as descriptor 7"},
				{Address: "[::]:6801", Holder: "ceph-osd (process 6) as descriptor 7"},
			},
			Unfenced: []*fencev1.Server{{Address: "[::]:10809", Holder: "nbd-server (process 8)"}},
			Sessions: []*fencev1.Session{{Client: "192.0.2.7:1024", Server: "192.0.2.1:6800", Holder: "ceph-osd (process 5) as descriptor 8"}},
			Others:   []*fencev1.Session{{Client: "192.0.2.7:1025", Server: "192.0.2.1:22", Holder: sshd}},
		},
		{Enforcer: "b/host", Servers: []*fencev1.Server{{Address: "0.0.0.0:4420", Holder: "nvmf_tgt (process 3)"}}},
	}}
}

func TestFenceShowsItsCoverage(t *testing.T) {
	r := newFenceRig(t, covering)
	const covers = "host: port 3260 (no visible process), host: port 6800-6801 (ceph-osd), b/host: port 4420 (nvmf_tgt)"
	r.says(t, "fenced 192.0.2.7/32\ncovers "+covers+"\n"+
		"host: 1 servers listen on ports that are not fenced, one is nbd-server (process 8) at [::]:10809\n"+
		"host: 1 sessions that serve no storage continue, one from 192.0.2.7:1025 to 192.0.2.1:22 of "+sshd+"\n", "add", "192.0.2.7")
	r.says(t, "CIDR           COVERS\n192.0.2.7/32   "+covers+"\n", "list")
	for _, c := range []struct {
		args  []string
		words []string
	}{
		{[]string{"list", "-o", "json"}, []string{`"cidr": "192.0.2.7/32"`, `"ports": "6800-6801"`, `"process": "ceph-osd"`, `"enforcer": "b/host"`}},
		{[]string{"add", "192.0.2.7", "-o", "yaml"}, []string{"fenced:\n- 192.0.2.7/32", "address: '[::]:6800'", "holder: " + sshd, "enforcer: b/host"}},
		{[]string{"check", "192.0.2.7", "-o", "json"}, []string{`"client": "192.0.2.7:1024"`, `"unfenced": [`, sshd}},
	} {
		out, notices, err := r.run(t, "", c.args...)
		for _, w := range c.words {
			if err != nil || notices != "" || !strings.Contains(out, w) {
				t.Errorf("%q: %v, %s\n%s\nwant %s", c.args, err, notices, out, w)
			}
		}
	}
	r.says(t, "unfenced 192.0.2.7/32\n", "rm", "192.0.2.7")
	if n := len(r.driver.Calls("FenceClusterNetwork")); n != 2 {
		t.Errorf("%d fences", n)
	}
}

func TestFenceCheck(t *testing.T) {
	r := newFenceRig(t, covering)
	r.says(t, `ENFORCER   WHAT                      CLIENT           SERVER           PROCESS
host       server                    -                [::]:3260        no visible process: a server in the kernel
host       server                    -                [::]:6800        ceph-osd (process 5) as descriptor 7
host       server                    -                [::]:6801        ceph-osd (process 6) as descriptor 7
host       server on an open port    -                [::]:10809       nbd-server (process 8)
host       session                   192.0.2.7:1024   192.0.2.1:6800   ceph-osd (process 5) as descriptor 8
host       session without storage   192.0.2.7:1025   192.0.2.1:22     `+sshd+`
b/host     server                    -                0.0.0.0:4420     nvmf_tgt (process 3)
`, "check", "192.0.2.7")
	if c := r.driver.Calls("GetCoverage"); len(c) != 1 || c[0].CIDRs[0] != "192.0.2.7/32" {
		t.Errorf("calls: %+v", c)
	}
	r.refuses(t, []string{"nothing was sent", "host bits"}, "check", "192.0.2.7/24")
	r.driver.Coverage.Enforcers[1].Problems = []string{"no storage server listens", "it is forwarded"}
	out, _, err := r.run(t, "", "check")
	if !saysAll(err, "a fence would not be confirmed: b/host: no storage server listens; b/host: it is forwarded") || !strings.Contains(out, "nvmf_tgt (process 3)") {
		t.Errorf("%v\n%s", err, out)
	}
	if n := len(r.driver.Calls("FenceClusterNetwork", "UnfenceClusterNetwork")); n != 0 {
		t.Errorf("check made %d changes", n)
	}
}

// A fence in force stays reported as such when its coverage cannot be read.
func TestFenceCoverageIsNotKnown(t *testing.T) {
	others := newFenceRig(t)
	others.refuses(t, []string{"Unimplemented", "only cleat reports"}, "check", "192.0.2.7")
	r := newFenceRig(t, covering)
	r.driver.Before(func(_ context.Context, c fencetest.Call) error {
		if c.Method == "GetCoverage" {
			return status.Error(codes.Internal, "sock_diag is broken")
		}
		return nil
	})
	for _, args := range [][]string{{"add", "192.0.2.7"}, {"list"}} {
		out, notices, err := r.run(t, "", args...)
		if err != nil || !strings.Contains(out, "192.0.2.7/32") || !strings.Contains(notices, "not known") || !strings.Contains(notices, "sock_diag is broken") {
			t.Errorf("%q: %v\n%s\n%s", args, err, out, notices)
		}
	}
	r.refuses(t, []string{"sock_diag is broken"}, "check")
}

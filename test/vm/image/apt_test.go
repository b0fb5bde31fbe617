package image

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSourcesFor(t *testing.T) {
	targets := `http://mirror.example/debian/ bookworm main
http://mirror.example/debian/ bookworm contrib
http://mirror.example/debian/ bookworm-updates main
http://mirror.example/debian/ bookworm-backports main
http://security.example/ bookworm-security main
http://mirror.example/debian/ bookworm main
https://other.example/ nodistro main
`
	sources, optional, err := sourcesFor("bookworm", targets)
	testkit.Must(t, err)
	want := `deb http://mirror.example/debian/ bookworm main
deb http://mirror.example/debian/ bookworm-updates main
deb http://security.example/ bookworm-security main
`
	if diff := cmp.Diff(want, sources); diff != "" {
		t.Errorf("sources (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(map[Source]string{
		Backports: "deb http://mirror.example/debian/ bookworm-backports main\n", Testing: "deb http://mirror.example/debian/ testing main\n",
	}, optional); diff != "" {
		t.Errorf("optional sources (-want +got)\n%s", diff)
	}
	if _, _, err := sourcesFor("trixie", targets); err == nil || !strings.Contains(err.Error(), "no source for trixie main") {
		t.Errorf("release without source: got %v", err)
	}
}

func TestNetworkSettings(t *testing.T) {
	dump := `APT::Update::Post-Invoke:: "rm -rf /";
Dir::State "var/lib/apt";
Acquire::http::Proxy "http://proxy.example:3128";
Acquire::Languages:: "de";
Acquire::IndexTargets::deb::DEP-11::MetaKey "x";
Acquire::Retries "3";
`
	want := `Acquire::http::Proxy "http://proxy.example:3128";
Acquire::Retries "3";
`
	if diff := cmp.Diff(want, network(dump)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestParseSimulatedInstall(t *testing.T) {
	got, err := parseSimulation(`NOTE: This is only a simulation!
Inst libgcc-s1 (12.2.0-14+deb12u1 Debian:12.11/stable [amd64]) []
Inst gcc-12-base (12.2.0-14+deb12u1 Debian:12.11/stable [amd64])
Inst libattr1 [1:2.5.0-1] (1:2.5.1-4 Debian:12.11/stable [amd64])
Inst linux-image-6.12.95+deb12-amd64 (6.12.95-1~bpo12+1 Debian Backports:stable-backports [amd64])
Conf libgcc-s1 (12.2.0-14+deb12u1 Debian:12.11/stable [amd64])
`)
	want := []Package{
		{"gcc-12-base", "12.2.0-14+deb12u1"}, {"libattr1", "1:2.5.1-4"}, {"libgcc-s1", "12.2.0-14+deb12u1"},
		{"linux-image-6.12.95+deb12-amd64", "6.12.95-1~bpo12+1"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	for _, bad := range []string{"", "Conf a (1 x)\n", "Inst a\n", "Inst a/b (1 x)\n", "Inst a ($(id) x)\n"} {
		if got, err := parseSimulation(bad); err == nil {
			t.Errorf("parsing %q: got %v, want an error", bad, got)
		}
	}
}

func TestConfigUsesOnlyPrivateDirectories(t *testing.T) {
	for line := range strings.Lines(apt{dir: "/cache/apt"}.config("me")) {
		name, value, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(line), ";"), " ")
		if strings.HasPrefix(name, "Dir::") && !strings.HasPrefix(value, `"/cache/apt/`) {
			t.Errorf("%s is %s, want a path below /cache/apt", name, value)
		}
	}
}

package image

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// stage is a stage of the Dockerfile: its instructions, one a line.
type stage struct {
	from, name string
	lines      []string
}

func stages(t *testing.T) []stage {
	t.Helper()
	data := testkit.Value(os.ReadFile("Dockerfile"))(t)
	text := regexp.MustCompile(`\\\n\s*`).ReplaceAllString(regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(data), ""), "")
	var all []stage
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }) {
		if m := regexp.MustCompile(`^FROM (\S+) AS (\S+)$`).FindStringSubmatch(line); m != nil {
			all = append(all, stage{from: m[1], name: m[2]})
			continue
		}
		if len(all) == 0 {
			t.Fatalf("%q is before the first stage", line)
		}
		all[len(all)-1].lines = append(all[len(all)-1].lines, line)
	}
	return all
}

// of returns the values of an instruction in a stage and its bases.
func of(all []stage, name, instruction string) []string {
	for _, s := range all {
		if s.name != name {
			continue
		}
		said := of(all, s.from, instruction)
		for _, line := range s.lines {
			if word, rest, _ := strings.Cut(line, " "); word == instruction {
				said = append(said, rest)
			}
		}
		return said
	}
	return nil
}

// The Dockerfile and make image use the same program for the files, and give the
// same configuration.
func TestDockerfileBuildsTheSameImage(t *testing.T) {
	all := stages(t)
	last := all[len(all)-1]
	if last.name != "cleat" || of(all, "cleat", "FROM") != nil {
		t.Errorf("the default stage is %s", last.name)
	}
	i := slices.IndexFunc(all, func(s stage) bool { return s.name == "root" })
	if i < 0 || all[i].from != "scratch" || last.from != "root" {
		t.Fatal("the last stages are not FROM scratch")
	}
	if diff := cmp.Diff([]string{"--from=build /out/base/ /", "--from=build /out/own/ /"}, of(all, "cleat", "COPY")); diff != "" {
		t.Errorf("files (-want +got)\n%s", diff)
	}
	want := []string{"go run ./deploy/image/cleat-image -directory /out/base base", "go build -trimpath -ldflags '-s -w' -o bin/cleat ./cmd/cleat",
		"go run ./deploy/image/cleat-image -directory /out/own own"}
	if diff := cmp.Diff(want, of(all, "build", "RUN")); diff != "" {
		t.Errorf("steps (-want +got)\n%s", diff)
	}
	inMakefile(t, want[1])
	if from := of(all, "build", "ENV"); !slices.Contains(from, "CGO_ENABLED=0") || all[0].from != "docker.io/library/golang:1.26-bookworm" {
		t.Errorf("built from %s with %v", all[0].from, from)
	}
	config := open(t, built.tar).config.Config
	if diff := cmp.Diff(config, dockerConfig(t, all, "cleat", config.Labels["org.opencontainers.image.revision"])); diff != "" {
		t.Errorf("configuration (-make image +Dockerfile)\n%s", diff)
	}
	plugin := dockerConfig(t, all, "sriov-plugin", "")
	if diff := cmp.Diff([]string{"/usr/bin/cleat", "sriov", "plugin"}, plugin.Entrypoint); diff != "" {
		t.Errorf("the plugin's entry point\n%s", diff)
	}
}

// Stage cleat-ceph builds the image of make image-ceph.
func TestDockerfileBuildsTheSameCephImage(t *testing.T) {
	all := stages(t)
	base := of(all, "build", "RUN")
	want := []string{"apt-get update && apt-get install -y --no-install-recommends librados-dev librbd-dev libcephfs-dev",
		"go run ./deploy/image/cleat-image -variant ceph -directory /out/ceph-base base",
		"go build -trimpath -ldflags '-s -w' -tags ceph,pacific -o bin/cleat-ceph ./cmd/cleat",
		"go run ./deploy/image/cleat-image -variant ceph -directory /out/ceph-own own"}
	if diff := cmp.Diff(want, of(all, "build-ceph", "RUN")[len(base):]); diff != "" {
		t.Errorf("steps (-want +got)\n%s", diff)
	}
	inMakefile(t, want[2])
	if env := of(all, "build-ceph", "ENV"); env[len(env)-1] != "CGO_ENABLED=1" {
		t.Errorf("built with %v", env)
	}
	if diff := cmp.Diff([]string{"--from=build-ceph /out/ceph-base/ /", "--from=build-ceph /out/ceph-own/ /"}, of(all, "cleat-ceph", "COPY")); diff != "" {
		t.Errorf("files (-want +got)\n%s", diff)
	}
	config := open(t, built.tar).config.Config
	config.Labels = labels(program{version: config.Labels["org.opencontainers.image.version"], revision: "r"}, variants()[Ceph])
	if diff := cmp.Diff(config, dockerConfig(t, all, "cleat-ceph", "r")); diff != "" {
		t.Errorf("configuration (-make image-ceph +Dockerfile)\n%s", diff)
	}
}

// The last stages have no shell, and the Makefile builds the same program.
func inMakefile(t *testing.T, build string) {
	t.Helper()
	for _, s := range stages(t) {
		if s.from != "scratch" && s.from != "root" {
			continue
		}
		for _, line := range s.lines {
			if strings.HasPrefix(line, "RUN ") {
				t.Errorf("stage %s has no shell for %s", s.name, line)
			}
		}
	}
	if makefile, err := os.ReadFile(filepath.Join(testkit.Root(t), "Makefile")); err != nil || !strings.Contains(string(makefile), strings.Replace(build, "go ", "$(GO) ", 1)) {
		t.Errorf("the Makefile does not build with %q (%v)", build, err)
	}
}

// dockerConfig returns the image configuration that a builder derives from a
// stage.
func dockerConfig(t *testing.T, all []stage, name, revision string) v1.ImageConfig {
	t.Helper()
	version := ""
	for _, arg := range of(all, name, "ARG") {
		if v, ok := strings.CutPrefix(arg, "VERSION="); ok {
			version = v
		}
	}
	labels := map[string]string{}
	for _, line := range of(all, name, "LABEL") {
		for _, m := range regexp.MustCompile(`(\S+)="([^"]*)"`).FindAllStringSubmatch(line, -1) {
			labels[m[1]] = strings.NewReplacer("${VERSION}", version, "${REVISION}", revision).Replace(m[2])
		}
	}
	if revision == "" { // an empty label is treated as absent
		delete(labels, "org.opencontainers.image.revision")
	}
	lastOf := func(instruction string) string {
		said := of(all, name, instruction)
		if len(said) == 0 {
			t.Fatalf("%s has no %s", name, instruction)
		}
		return said[len(said)-1]
	}
	var entry []string
	testkit.Must(t, json.Unmarshal([]byte(lastOf("ENTRYPOINT")), &entry))
	return v1.ImageConfig{User: lastOf("USER"), WorkingDir: lastOf("WORKDIR"), Entrypoint: entry, Env: of(all, name, "ENV"), Labels: labels}
}

// The first step's files are copied before it, so that later changes keep the
// cached packages.
func TestDockerfileCopiesWhatTheFirstStepNeeds(t *testing.T) {
	var before []string
	for _, line := range stages(t)[0].lines {
		if strings.HasPrefix(line, "RUN ") {
			break
		}
		if rest, ok := strings.CutPrefix(line, "COPY "); ok {
			before = append(before, strings.Fields(rest)[0])
		}
	}
	out := testkit.Value(goTool(t.Context(), "", variants()[Default], "list", "-deps", "-f", "{{if .Module}}{{if .Module.Main}}{{.ImportPath}}{{end}}{{end}}", "./cleat-image"))(t)
	for _, p := range strings.Fields(out) {
		dir := strings.TrimPrefix(p, "github.com/cleatproject/cleat/")
		if !slices.ContainsFunc(before, func(copied string) bool { return dir == copied || strings.HasPrefix(dir, copied+"/") }) {
			t.Errorf("%s is not copied before the first step: only %v", dir, before)
		}
	}
}

package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// apt is a private apt-get configuration: the host's sources and network
// settings, separate package lists, and no installed packages. The host's apt
// is only read.
type apt struct{ dir string }

func (a apt) path(name string) string { return filepath.Join(a.dir, name) }

// configure writes the private configuration.
func (a apt) configure(ctx context.Context) error {
	for _, dir := range []string{"none", partsOf(Backports), partsOf(Testing), "state/lists/partial", "cache/archives/partial", "trusted"} {
		if err := os.MkdirAll(a.path(dir), 0o755); err != nil {
			return err
		}
	}
	codename, err := codename()
	if err != nil {
		return err
	}
	targets, err := output(exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Identifier: Packages"))
	if err != nil {
		return fmt.Errorf("read the host's apt sources: %w", err)
	}
	sources, optional, err := sourcesFor(codename, targets)
	if err != nil {
		return err
	}
	dump, err := output(exec.CommandContext(ctx, "apt-config", "dump"))
	if err != nil {
		return fmt.Errorf("read the host's apt network settings: %w", err)
	}
	if err := a.trust(); err != nil {
		return err
	}
	me, err := user.Current()
	if err != nil {
		return err
	}
	files := map[string]string{"sources.list": sources, "state/status": "", "apt.conf": a.config(me.Username) + network(dump)}
	for source, text := range optional {
		files[filepath.Join(partsOf(source), "source.list")] = text
	}
	for name, text := range files {
		if err := os.WriteFile(a.path(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// config returns the private configuration without network settings.
func (a apt) config(sandboxUser string) string {
	var b strings.Builder
	for _, v := range [][2]string{
		{"Dir::Etc::main", "none/main"}, {"Dir::Etc::parts", "none/"}, {"Dir::Etc::sourcelist", "sources.list"}, {"Dir::Etc::sourceparts", "none/"},
		{"Dir::Etc::preferences", "none/preferences"}, {"Dir::Etc::preferencesparts", "none/"}, {"Dir::Etc::trusted", "none/trusted"}, {"Dir::Etc::trustedparts", "trusted/"},
		{"Dir::State", "state/"}, {"Dir::State::status", "state/status"}, {"Dir::Cache", "cache/"},
	} {
		fmt.Fprintf(&b, "%s %q;\n", v[0], a.dir+"/"+v[1])
	}
	fmt.Fprintf(&b, "APT::Sandbox::User %q;\nAcquire::Languages \"none\";\n", sandboxUser)
	return b.String()
}

// trust links the host's trusted keys.
func (a apt) trust() error {
	var keys []string
	for _, pattern := range []string{"/etc/apt/trusted.gpg.d/*.gpg", "/etc/apt/trusted.gpg.d/*.asc", "/usr/share/keyrings/debian-archive-keyring.gpg"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		keys = append(keys, found...)
	}
	if len(keys) == 0 {
		return errors.New("no Debian archive keys found; install the package debian-archive-keyring")
	}
	for _, key := range keys {
		if err := os.Symlink(key, a.path(filepath.Join("trusted", filepath.Base(key)))); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

func codename() (string, error) {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("find the Debian release: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if name, ok := strings.CutPrefix(line, "VERSION_CODENAME="); ok {
			return strings.Trim(strings.TrimSpace(name), `"`), nil
		}
	}
	return "", errors.New("find the Debian release: /etc/os-release has no VERSION_CODENAME")
}

// sourcesFor selects the release's sources from apt's index targets (lines of
// repository, suite, component). The optional sources are derived from that of
// the release.
func sourcesFor(codename, targets string) (sources string, optional map[Source]string, err error) {
	var all []string
	optional = map[Source]string{}
	for line := range strings.Lines(targets) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] != "main" {
			continue
		}
		repository, suite := fields[0], fields[1]
		switch suite {
		case codename:
			for source, suite := range suites(codename) {
				optional[source] = fmt.Sprintf("deb %s %s main\n", repository, suite)
			}
		case codename + "-updates", codename + "-security":
		default:
			continue
		}
		if entry := fmt.Sprintf("deb %s %s main\n", repository, suite); !slices.Contains(all, entry) {
			all = append(all, entry)
		}
	}
	if len(optional) == 0 {
		return "", nil, fmt.Errorf("apt has no source for %s main, which the guests are built from", codename)
	}
	return strings.Join(all, ""), optional, nil
}

// network selects the network settings of apt-config dump: proxies, retries,
// certificates.
func network(dump string) string {
	var b strings.Builder
	for line := range strings.Lines(dump) {
		if strings.HasPrefix(line, "Acquire::") && !strings.HasPrefix(line, "Acquire::IndexTargets") && !strings.HasPrefix(line, "Acquire::Languages") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// strict makes an unreachable source an error instead of a warning.
const strict = "-oAPT::Update::Error-Mode=any"

// update fetches the package lists of the release.
func (a apt) update(ctx context.Context) error {
	_, err := a.get(ctx, strict, "update")
	return err
}

// updateOptional fetches the package lists of a source that can be missing.
func (a apt) updateOptional(ctx context.Context, source Source) error {
	_, err := a.get(ctx, "-o", "Dir::Etc::sourcelist="+a.path("none/list"), "-o", a.with(source), "-o", "APT::Get::List-Cleanup=0", strict, "update")
	return err
}

// with is the option that adds a source to the release's. Each has a directory of
// its own: apt would take dependencies from the newest.
func (a apt) with(source Source) string { return "Dir::Etc::sourceparts=" + a.path(partsOf(source)) }

func partsOf(source Source) string { return string(source) + ".d" }

// Package is a Debian package with its version.
type Package struct {
	Name    string
	Version string
}

func (p Package) String() string { return p.Name + "=" + p.Version }

// closure returns the named packages with all dependencies. suite is that of the
// source.
func (a apt) closure(ctx context.Context, source Source, suite string, names ...string) ([]Package, error) {
	args := []string{"--simulate", "--no-install-recommends", "-y"}
	if source != Stable {
		args = append(args, "-o", a.with(source), "--target-release", suite)
	}
	text, err := a.get(ctx, append(append(args, "install"), names...)...)
	if err != nil {
		return nil, err
	}
	return parseSimulation(text)
}

// installLine matches a package in the output of apt-get --simulate: Inst libc6
// (2.36-9 Debian:12.11/stable [amd64]) ...
var installLine = regexp.MustCompile(`^Inst ([a-z0-9][a-z0-9+.:-]*) (?:\[[^]]*\] )?\(([A-Za-z0-9.+~:-]+) `)

func parseSimulation(text string) ([]Package, error) {
	var all []Package
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "Inst ") {
			continue
		}
		m := installLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("apt-get --simulate: cannot parse package and version in %q", strings.TrimSpace(line))
		}
		all = append(all, Package{Name: m[1], Version: m[2]})
	}
	if len(all) == 0 {
		return nil, errors.New("apt-get --simulate listed no package")
	}
	slices.SortFunc(all, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// download downloads packages of a source into a directory and returns the paths
// of the .deb files.
func (a apt) download(ctx context.Context, source Source, packages []Package, dir string) ([]string, error) {
	args := []string{"-o", a.with(source), "-q", "download"}
	for _, p := range packages {
		args = append(args, p.String())
	}
	cmd := a.command(ctx, args...)
	cmd.Dir = dir
	if _, err := output(cmd); err != nil {
		return nil, fmt.Errorf("download %s: %w", describe(packages), err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err == nil && len(found) != len(packages) {
		err = fmt.Errorf("got %d archives", len(found))
	}
	if err != nil {
		return nil, fmt.Errorf("download %s: %w", describe(packages), err)
	}
	return found, nil
}

func (a apt) get(ctx context.Context, args ...string) (string, error) {
	return output(a.command(ctx, append([]string{"-q"}, args...)...))
}

func (a apt) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "APT_CONFIG="+a.path("apt.conf"), "LC_ALL=C")
	return cmd
}

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

// apt is a private configuration of apt-get: the machine's own sources and
// network settings, its own lists, and no package installed. The machine's
// apt is only read.
type apt struct{ dir string }

// The one source that may fail has a directory of its own.
const (
	backportsDir  = "backports.d"
	backportsList = backportsDir + "/backports.list"
)

func (a apt) path(name string) string { return filepath.Join(a.dir, name) }

// configure writes the private configuration.
func (a apt) configure(ctx context.Context) error {
	for _, dir := range []string{"none", backportsDir, "state/lists/partial", "cache/archives/partial", "trusted"} {
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
		return fmt.Errorf("ask apt for the machine's sources: %w", err)
	}
	sources, backports, err := sourcesFor(codename, targets)
	if err != nil {
		return err
	}
	dump, err := output(exec.CommandContext(ctx, "apt-config", "dump"))
	if err != nil {
		return fmt.Errorf("ask apt for the machine's network settings: %w", err)
	}
	if err := a.trust(); err != nil {
		return err
	}
	me, err := user.Current()
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"sources.list": sources, backportsList: backports, "state/status": "", "apt.conf": a.config(me.Username) + network(dump),
	} {
		if err := os.WriteFile(a.path(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// config is the private configuration without the network.
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

// trust takes over the keys that the machine trusts.
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
		return errors.New("this machine has no keys of Debian's archive: install the package debian-archive-keyring")
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
		return "", fmt.Errorf("which Debian this is: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if name, ok := strings.CutPrefix(line, "VERSION_CODENAME="); ok {
			return strings.Trim(strings.TrimSpace(name), `"`), nil
		}
	}
	return "", errors.New("which Debian this is: /etc/os-release has no VERSION_CODENAME")
}

// sourcesFor picks the release's sources among apt's index targets (lines of
// repository, suite, component), and derives the source of its backports from
// the one of the release itself.
func sourcesFor(codename, targets string) (sources, backports string, err error) {
	var all []string
	for line := range strings.Lines(targets) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] != "main" {
			continue
		}
		repository, suite := fields[0], fields[1]
		switch suite {
		case codename:
			backports = fmt.Sprintf("deb %s %s-backports main\n", repository, codename)
		case codename + "-updates", codename + "-security":
		default:
			continue
		}
		if entry := fmt.Sprintf("deb %s %s main\n", repository, suite); !slices.Contains(all, entry) {
			all = append(all, entry)
		}
	}
	if backports == "" {
		return "", "", fmt.Errorf("apt of this machine has no source for %s main: the guests are made of that release's packages", codename)
	}
	return strings.Join(all, ""), backports, nil
}

// network picks out of apt-config dump how the machine reaches its sources:
// proxies, retries, certificates.
func network(dump string) string {
	var b strings.Builder
	for line := range strings.Lines(dump) {
		if strings.HasPrefix(line, "Acquire::") && !strings.HasPrefix(line, "Acquire::IndexTargets") && !strings.HasPrefix(line, "Acquire::Languages") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// update fetches the lists. missing says why there are no backports.
func (a apt) update(ctx context.Context) (missing, err error) {
	const strict = "-oAPT::Update::Error-Mode=any" // or a source that cannot be reached is a warning
	if _, err := a.get(ctx, strict, "update"); err != nil {
		return nil, err
	}
	_, missing = a.get(ctx, "-o", "Dir::Etc::sourcelist="+a.path("none/list"), "-o", a.backports(), "-o", "APT::Get::List-Cleanup=0", strict, "update")
	return missing, nil
}

// backports is the option that adds their source.
func (a apt) backports() string { return "Dir::Etc::sourceparts=" + a.path(backportsDir) }

// Package is one Debian package of a fixed version.
type Package struct {
	Name    string
	Version string
}

func (p Package) String() string { return p.Name + "=" + p.Version }

// closure is the named packages with all that they depend on. suite is empty
// for the release itself.
func (a apt) closure(ctx context.Context, suite string, names ...string) ([]Package, error) {
	args := []string{"--simulate", "--no-install-recommends", "-y"}
	if suite != "" {
		args = append(args, "-o", a.backports(), "--target-release", suite)
	}
	text, err := a.get(ctx, append(append(args, "install"), names...)...)
	if err != nil {
		return nil, err
	}
	return parseSimulation(text)
}

// installLine is what apt-get --simulate says of a package:
// Inst libc6 (2.36-9 Debian:12.11/stable [amd64]) and more.
var installLine = regexp.MustCompile(`^Inst ([a-z0-9][a-z0-9+.:-]*) (?:\[[^]]*\] )?\(([A-Za-z0-9.+~:-]+) `)

func parseSimulation(text string) ([]Package, error) {
	var all []Package
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "Inst ") {
			continue
		}
		m := installLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("apt-get --simulate says %q, which names no package and version", strings.TrimSpace(line))
		}
		all = append(all, Package{Name: m[1], Version: m[2]})
	}
	if len(all) == 0 {
		return nil, errors.New("apt-get --simulate names no package")
	}
	slices.SortFunc(all, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// download fetches the packages' archives into a directory and returns their
// paths.
func (a apt) download(ctx context.Context, packages []Package, dir string) ([]string, error) {
	args := []string{"-o", a.backports(), "-q", "download"}
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
		err = fmt.Errorf("%d archives came", len(found))
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

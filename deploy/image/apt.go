package image

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// listsLast is the maximum age of package lists before they are fetched again.
const listsLast = 24 * time.Hour

// apt runs apt-get with the machine's sources, keys and network settings, but
// with its own lists and cache. It changes nothing on the machine and installs
// nothing.
type apt struct {
	dir          string
	architecture string // Debian's name, equal to Go's for amd64 and arm64
	release      string // as apt names it; empty: the machine's
	log          func(format string, args ...any)
}

// archive is the archive of one package as a source offers it.
type archive struct {
	File   string // such as libc6_2.36-9+deb12u14_amd64.deb
	SHA256 string
}

// Name returns the package's name.
func (a archive) Name() string {
	name, _, _ := strings.Cut(a.File, "_")
	return name
}

// Version returns the package's version.
func (a archive) Version() string {
	fields := strings.Split(a.File, "_")
	return strings.ReplaceAll(fields[1], "%3a", ":")
}

// config is read after the machine's configuration. It clears the machine's
// hooks, which are meant for the machine's own lists.
func (a apt) config() string {
	text := fmt.Sprintf(`#clear APT::Update;
#clear DPkg::Post-Invoke;
#clear APT::Architectures;
APT::Architecture %q;
APT::Architectures { %q; };
Dir::State::lists %q;
Dir::Cache %q;
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
`, a.architecture, a.architecture, filepath.Join(a.dir, "lists")+"/", filepath.Join(a.dir, "cache")+"/")
	if a.release != "" { // its packages do not depend on what is installed here
		text += fmt.Sprintf("Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts %q;\nDir::State::status %q;\n",
			filepath.Join(a.dir, "sources.list"), filepath.Join(a.dir, "none")+"/", filepath.Join(a.dir, "status"))
	}
	return text
}

// writeSources writes the sources of a release that is not the machine's.
func (a apt) writeSources(ctx context.Context) error {
	targets, err := output(exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT) $(SIGNED_BY)", "Identifier: Packages"))
	if err != nil {
		return fmt.Errorf("read the machine's apt sources: %w", err)
	}
	source, err := sourceOf(a.release, targets)
	if err != nil {
		return err
	}
	return errors.Join(
		os.MkdirAll(filepath.Join(a.dir, "none"), 0o755),
		os.WriteFile(filepath.Join(a.dir, "status"), nil, 0o644),
		os.WriteFile(filepath.Join(a.dir, "sources.list"), []byte(source), 0o644),
	)
}

// sourceOf derives the source of a release from that of the machine's release,
// which apt lists as repository, release, component and file of keys.
func sourceOf(release, targets string) (string, error) {
	for line := range strings.Lines(targets) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[1] != machineRelease || fields[2] != "main" {
			continue
		}
		options := ""
		if len(fields) == 4 && filepath.IsAbs(fields[3]) {
			options = "[signed-by=" + fields[3] + "] "
		}
		return fmt.Sprintf("deb %s%s %s main\n", options, fields[0], release), nil
	}
	return "", fmt.Errorf("apt has no source of %s main, from which that of %s is derived", machineRelease, release)
}

func (a apt) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-c", filepath.Join(a.dir, "apt.conf"), "-q"}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	return cmd
}

// prepare writes the configuration, and fetches the lists if they are older
// than listsLast. If that fails, older lists are used.
func (a apt) prepare(ctx context.Context) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("the image is built from Debian packages: %w; on another system build deploy/image/Dockerfile", err)
	}
	for _, dir := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(a.dir, "apt.conf"), []byte(a.config()), 0o644); err != nil {
		return err
	}
	if a.release != "" {
		if err := a.writeSources(ctx); err != nil {
			return err
		}
	}
	stamp := filepath.Join(a.dir, "updated")
	info, err := os.Stat(stamp)
	if err == nil && time.Since(info.ModTime()) < listsLast {
		return nil
	}
	had := err == nil
	a.log("fetching the lists of Debian packages")
	if err := a.update(ctx); err != nil {
		if !had || ctx.Err() != nil {
			return err
		}
		a.log("the lists of packages stay those of %s: %v", info.ModTime().Format(time.DateTime), err)
	}
	return nil
}

func (a apt) update(ctx context.Context) error {
	if _, err := output(a.command(ctx, "update")); err != nil {
		return fmt.Errorf("fetch the lists of Debian packages: %w", err)
	}
	return os.WriteFile(filepath.Join(a.dir, "updated"), nil, 0o644)
}

// renew makes the next run fetch the lists: the failure can be caused by
// outdated or incomplete lists.
func (a apt) renew(cause error) error {
	if err := os.Remove(filepath.Join(a.dir, "updated")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(cause, err)
	}
	return fmt.Errorf("%w (the next run fetches the package lists again)", cause)
}

// closure returns the packages and everything that they depend on, of a release
// that is not the machine's.
func (a apt) closure(ctx context.Context, names []string) ([]string, error) {
	text, err := output(a.command(ctx, append([]string{"--simulate", "--no-install-recommends", "-y", "install"}, names...)...))
	if err != nil {
		return nil, fmt.Errorf("list the dependencies with apt: %w", err)
	}
	var all []string
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Inst" {
			all = append(all, fields[1])
		}
	}
	return all, nil
}

// archives returns the archives of the packages.
func (a apt) archives(ctx context.Context, names []string) ([]archive, error) {
	text, err := output(a.command(ctx, append([]string{"--print-uris", "download"}, names...)...))
	if err != nil {
		return nil, fmt.Errorf("list the archives with apt: %w", err)
	}
	found, err := parseArchives(text, names)
	if err != nil {
		return nil, fmt.Errorf("list the archives with apt: %w", err)
	}
	return found, nil
}

// archiveLine matches a line of apt-get --print-uris:
// 'http://HOST/PATH.deb' libc6_2.36-9_amd64.deb 2759320 SHA256:ba4f...
var archiveLine = regexp.MustCompile(`^'[^']+' ([a-z0-9][a-z0-9+.-]+_[A-Za-z0-9.+~%-]+_[a-z0-9]+\.deb) [0-9]+ SHA256:([0-9a-f]{64})$`)

func parseArchives(text string, names []string) ([]archive, error) {
	var all []archive
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "'") {
			continue
		}
		m := archiveLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			return nil, fmt.Errorf("%q has no archive name and SHA-256", strings.TrimSpace(line))
		}
		all = append(all, archive{File: m[1], SHA256: m[2]})
	}
	slices.SortFunc(all, func(a, b archive) int { return cmp.Compare(a.File, b.File) })
	all = slices.Compact(all)
	var got []string
	for _, a := range all {
		got = append(got, a.Name())
	}
	if want := slices.Sorted(slices.Values(names)); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		return nil, fmt.Errorf("got archives of %v, want %v", got, want)
	}
	return all, nil
}

// download fetches the archives into a directory; apt checks the digests of its
// lists.
func (a apt) download(ctx context.Context, archives []archive, dir string) error {
	args := []string{"download"}
	for _, one := range archives {
		args = append(args, one.Name()+"="+one.Version())
	}
	cmd := a.command(ctx, args...)
	cmd.Dir = dir
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("download packages: %w", err)
	}
	var missing []error
	for _, one := range archives {
		if _, err := os.Stat(filepath.Join(dir, one.File)); err != nil {
			missing = append(missing, err)
		}
	}
	return errors.Join(missing...)
}

// output runs a command and returns its standard output. An error includes the
// last lines of standard error.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.Join(lines[max(0, len(lines)-5):], "\n"))
	}
	return stdout.String(), nil
}

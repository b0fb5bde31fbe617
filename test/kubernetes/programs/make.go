package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// make builds what a set lacks of m.
func (b *builder) make(ctx context.Context, m module, set Set, w work) (err error) {
	scratch, err := os.MkdirTemp(b.cache, making+m.name+"-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	versions, err := b.versions(ctx, m, scratch)
	if err != nil {
		return err
	}
	if len(w.programs) > 0 {
		if err := b.compile(ctx, m, versions, set, scratch, w.programs, "build"); err != nil {
			return err
		}
	}
	for _, t := range w.tests {
		if err := b.compile(ctx, m, versions, set, scratch, []program{t}, "test", "-c", "-vet=off"); err != nil {
			return err
		}
	}
	for _, s := range m.sources {
		for _, c := range s.crds {
			if !slices.Contains(w.crds, c) {
				continue
			}
			dir, err := b.goModule(ctx, m, scratch, "list", "-mod=readonly", "-f", "{{.Module.Dir}}", s.path+"/"+c.pkg)
			if err != nil {
				return err
			}
			if err := copyCRDs(filepath.Join(strings.TrimSpace(dir), c.dir), scratch, filepath.Join(set.Dir, crdsDir, c.name)); err != nil {
				return fmt.Errorf("custom resource definitions of %s: %w", c.name, err)
			}
		}
	}
	return nil
}

// versions returns the versions of m's sources by path, as chosen by its
// go.mod.
func (b *builder) versions(ctx context.Context, m module, scratch string) (map[string]string, error) {
	out, err := b.goModule(ctx, m, scratch, "list", append([]string{"-mod=readonly", "-m", "-f", "{{.Path}} {{.Version}}"}, m.paths()...)...)
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	for line := range strings.Lines(out) {
		path, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[path] = version
	}
	return all, nil
}

// compile builds these programs and moves them into the set.
func (b *builder) compile(ctx context.Context, m module, versions map[string]string, set Set, scratch string, programs []program, command string, args ...string) error {
	start := time.Now()
	out, err := os.MkdirTemp(scratch, "out-")
	if err != nil {
		return err
	}
	args = append(args, buildFlags()...)
	for _, s := range m.sources {
		args = append(args, s.linkerFlags(versions[s.path]))
	}
	args = append(args, "-o", out+string(filepath.Separator))
	if programs[0].test {
		args[len(args)-1] += programs[0].output()
	}
	var list []string
	for s, p := range m.all {
		if slices.Contains(programs, p) {
			args = append(args, s.path+"/"+p.pkg)
			list = append(list, p.name)
		}
	}
	b.logf("%s: building %s", m.name, strings.Join(list, ", "))
	stop := b.logProgress(m.name, start, out, len(list))
	_, err = b.goModule(ctx, m, scratch, command, args...)
	stop()
	if err != nil {
		return err
	}
	for _, p := range programs {
		size, err := place(filepath.Join(out, p.output()), set.Path(p.name))
		if err != nil {
			return err
		}
		b.logf("%s: %s, %d MB", m.name, p.name, size/1_000_000)
	}
	b.logf("%s: built in %s", m.name, since(start))
	return nil
}

// logProgress logs once a minute that the build is running, until stop is
// called.
func (b *builder) logProgress(name string, start time.Time, out string, programs int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var beating sync.WaitGroup
	beating.Go(func() {
		ticker := time.NewTicker(time.Minute)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				done, _ := os.ReadDir(out) // only for the log
				b.logf("%s: %s, %d of %d linked", name, since(start), len(done), programs)
			}
		}
	})
	return func() {
		cancel()
		beating.Wait()
	}
}

// place moves a complete program to its final path, and returns its size.
func place(from, to string) (int64, error) {
	f, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return 0, err
	}
	return info.Size(), os.Rename(from, to)
}

// copyCRDs copies the CRDs in from to the directory to, which is created
// atomically.
func copyCRDs(from, scratch, to string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.yaml"))
	if err != nil {
		return err
	}
	half, err := os.MkdirTemp(scratch, "crds-")
	if err != nil {
		return err
	}
	copied := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !bytes.Contains(text, []byte("\nkind: CustomResourceDefinition\n")) {
			continue // input of kustomize
		}
		if err := os.WriteFile(filepath.Join(half, filepath.Base(file)), text, 0o644); err != nil {
			return err
		}
		copied++
	}
	if copied == 0 {
		return fmt.Errorf("none in %s", from)
	}
	return errors.Join(os.Chmod(half, 0o755), os.MkdirAll(filepath.Dir(to), 0o755), os.RemoveAll(to), os.Rename(half, to))
}

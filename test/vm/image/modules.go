package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// moduleTree is depmod's information about one kernel's modules.
type moduleTree struct {
	files   map[string]string   // module name -> path below lib/modules/<release>
	needs   map[string][]string // path -> paths of all dependencies
	soft    map[string][]string // module name -> soft dependencies to load before it
	alias   map[string][]string // alias, such as crypto-crc32c -> modules that provide it
	builtin map[string]bool     // modules built into the kernel
}

// readModules reads depmod's tables in lib/modules/<release>.
func readModules(dir string) (*moduleTree, error) {
	text := func(name string) (string, error) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		return string(data), err
	}
	deps, err1 := text("modules.dep")
	softdeps, err2 := text("modules.softdep")
	aliases, err3 := text("modules.alias")
	builtins, err4 := text("modules.builtin")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	return parseModules(deps, softdeps, aliases, builtins)
}

func parseModules(deps, softdeps, aliases, builtins string) (*moduleTree, error) {
	t := &moduleTree{files: map[string]string{}, needs: map[string][]string{}, soft: map[string][]string{}, alias: map[string][]string{}, builtin: map[string]bool{}}
	for line := range strings.Lines(deps) {
		file, needs, found := strings.Cut(strings.TrimSpace(line), ":")
		if !found {
			return nil, fmt.Errorf("modules.dep: line %q has no module", line)
		}
		t.files[moduleName(file)] = file
		t.needs[file] = strings.Fields(needs)
	}
	for line := range strings.Lines(softdeps) {
		fields := strings.Fields(line) // softdep NAME pre: A B post: C
		if len(fields) < 3 || fields[0] != "softdep" {
			continue // a comment
		}
		name := canonical(fields[1])
		before := false
		for _, word := range fields[2:] {
			switch {
			case strings.HasSuffix(word, ":"):
				before = word == "pre:"
			case before:
				t.soft[name] = append(t.soft[name], canonical(word))
			}
		}
	}
	for line := range strings.Lines(aliases) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "alias" {
			name := canonical(fields[1])
			t.alias[name] = append(t.alias[name], canonical(fields[2]))
		}
	}
	for line := range strings.Lines(builtins) {
		t.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	return t, nil
}

// moduleName returns the kernel's name for a module file.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return canonical(name)
}

// canonical returns a module name as the kernel writes it.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

// closure returns the files of modules and their dependencies in load order.
func (t *moduleTree) closure(names ...string) ([]string, error) {
	var order []string
	var add func(name string, must bool) error
	add = func(name string, must bool) error {
		name = canonical(name)
		file, found := t.files[name]
		switch {
		case !found && must && !t.builtin[name]:
			return fmt.Errorf("this kernel has no module %q", name)
		case !found || slices.Contains(order, file):
			return nil
		}
		for _, soft := range t.soft[name] {
			for _, provider := range append(t.alias[soft], soft) {
				if err := add(provider, false); err != nil {
					return err
				}
			}
		}
		needs := t.needs[file]
		for i := len(needs) - 1; i >= 0; i-- { // depmod lists dependencies in reverse load order
			if err := add(moduleName(needs[i]), true); err != nil {
				return err
			}
		}
		if !slices.Contains(order, file) {
			order = append(order, file)
		}
		return nil
	}
	for _, name := range names {
		if err := add(name, true); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// depmod creates the module tables, which the package leaves to its
// installation script.
func depmod(ctx context.Context, root, release string) error {
	_, err := output(exec.CommandContext(ctx, "depmod", "--basedir", root, "--filesyms", bootFile(root, release, "System.map"), release))
	return err
}

// trimTables reduces depmod's tables to the given files, because modprobe reads
// them completely. Modules are uncompressed in the guest.
func trimTables(dir string, files []string) (map[string]string, error) {
	names := map[string]bool{}
	for _, f := range files {
		names[moduleName(f)] = true
	}
	tables := map[string]string{}
	for _, table := range []string{"modules.dep", "modules.alias", "modules.softdep", "modules.symbols", "modules.builtin", "modules.order"} {
		data, err := os.ReadFile(filepath.Join(dir, table))
		if err != nil {
			return nil, err
		}
		tables[table] = trimTable(table, string(data), names)
	}
	return tables, nil
}

func trimTable(table, text string, names map[string]bool) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		keep := table == "modules.builtin"
		switch {
		case len(fields) == 0 || strings.HasPrefix(line, "#"):
		case table == "modules.dep" || table == "modules.order":
			keep = names[moduleName(strings.TrimSuffix(fields[0], ":"))]
		case table == "modules.alias" || table == "modules.symbols": // alias PATTERN NAME
			keep = names[canonical(fields[len(fields)-1])]
		case table == "modules.softdep":
			keep = len(fields) > 1 && names[canonical(fields[1])]
		}
		if keep {
			b.WriteString(strings.ReplaceAll(line, ".ko.xz", ".ko"))
		}
	}
	return b.String()
}

package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/deploy/image/oci"
)

const docDir = "/usr/share/doc/cleat/"

var licenceName = regexp.MustCompile(`(?i)^(?:licen[cs]e|copying|notice|patents)(?:[._-].*)?$`)

// goPackage is a package in the output of go list.
type goPackage struct {
	Dir    string
	Module *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// licences returns the licences and notices of cleat, of Go, and of every
// module linked into cleat. source is a directory of cleat's module.
func licences(ctx context.Context, source string, of contents) ([]oci.File, error) {
	env, err := goTool(ctx, source, of, "env", "-json", "GOMOD", "GOROOT")
	if err != nil {
		return nil, err
	}
	var where struct{ GOMOD, GOROOT string }
	if err := json.Unmarshal([]byte(env), &where); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	list, err := goTool(ctx, source, of, "list", "-deps", "-json=Dir,Module", mainPackage)
	if err != nil {
		return nil, err
	}
	files, err := linkedLicences(list)
	if err != nil {
		return nil, err
	}
	files[docDir+"copyright"] = filepath.Join(filepath.Dir(where.GOMOD), "LICENSE")
	files[docDir+"go/LICENSE"] = filepath.Join(where.GOROOT, "LICENSE")
	var all []oci.File
	for name, host := range files {
		if _, err := os.Stat(host); err != nil {
			return nil, fmt.Errorf("licence for the image: %w", err)
		}
		all = append(all, oci.File{Path: name, Mode: 0o644, Content: oci.HostFile(host)})
	}
	slices.SortFunc(all, func(a, b oci.File) int { return strings.Compare(a.Path, b.Path) })
	return all, nil
}

// linkedLicences maps paths in the image to files of the modules, from each
// linked package's directory up to its module's.
func linkedLicences(list string) (map[string]string, error) {
	files := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(list)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return files, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if p.Module == nil || p.Module.Main {
			continue
		}
		found := 0
		for dir := p.Dir; ; dir = filepath.Dir(dir) {
			below, err := filepath.Rel(p.Module.Dir, dir)
			if err != nil || strings.HasPrefix(below, "..") {
				break
			}
			names, err := licencesIn(dir)
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				files[path.Join(docDir, "modules", p.Module.Path+"@"+p.Module.Version, filepath.ToSlash(below), name)] = filepath.Join(dir, name)
				found++
			}
		}
		if found == 0 {
			return nil, fmt.Errorf("module %s has no licence: a program linked with it must not be distributed", p.Module.Path)
		}
	}
}

func licencesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && licenceName.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go" {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

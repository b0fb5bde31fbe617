package workload

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var hit = regexp.MustCompile(`crashpoint\.Hit\("([^"]+)"\)`)

// Points returns the names of all crash points in the product's source, so that
// none is forgotten. It excludes the points of fences, of DPU devices and of
// takeovers (test/fence, test/dpu and test/takeover check that each of theirs is
// hit), of engine ceph (test/ceph), of engine/spdk (its own tests), of node/nvme
// (test/vm/nvme), of node/cephfs (test/vm/ceph), RemovePoints, those of
// store.Move, which only the DPU plugin calls, and those of mkfs.Format (mkfs),
// for volumes whose file systems nodes create.
func Points(root string) ([]string, error) {
	all, err := scan(root)
	return slices.DeleteFunc(all, func(p string) bool {
		return isRemovePoint(p) || strings.HasPrefix(p, "store-move.") || strings.HasPrefix(p, "stage.formatting/")
	}), err
}

// RemovePoints returns the names of the crash points of cleat pool remove,
// which no driver reaches.
func RemovePoints(root string) ([]string, error) {
	all, err := scan(root)
	return slices.DeleteFunc(all, func(p string) bool { return !isRemovePoint(p) }), err
}

func isRemovePoint(point string) bool { return strings.HasPrefix(point, "remove.") }

func scan(root string) ([]string, error) {
	var all []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root {
			below := strings.TrimPrefix(path, root+"/")
			if slices.Contains([]string{"test", "fence", "dpu", "takeover", "engine/ceph", "engine/spdk", "node/nvme", "node/cephfs"}, below) || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		data, err := os.ReadFile(path)
		for _, m := range hit.FindAllSubmatch(data, -1) {
			all = append(all, string(m[1]))
		}
		return err
	})
	if err == nil && len(all) == 0 {
		err = errors.New("there is no crash point in the source below " + root)
	}
	slices.Sort(all)
	return slices.Compact(all), err
}

// LeadsTo returns the point at which a driver has to die so that the next one
// reaches a point of its start-up; "" for all other points.
func LeadsTo(point string) string {
	switch point {
	case "recover.thawed":
		return "clone.frozen"
	case "recover.incoming":
		return "create.filled"
	case "recover.volume":
		return "delete.marked"
	case "recover.snapshot":
		return "delete-snapshot.marked"
	case "recover.group":
		return "delete-group.marked"
	}
	return ""
}

// ImagePoints are those of creating the pool's image, in the order of a first
// start; the last one is reached in a start with a larger image.
func ImagePoints() []string {
	return []string{"image.allocated", "image.filled", "image.renamed", "image.attached", "image.mounted", "image.grown"}
}

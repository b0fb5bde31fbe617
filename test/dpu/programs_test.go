package dpu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// programEnvironment is the absolute path of a prebuilt cleat to test. Tests
// that kill at crash points need one built with -tags crashpoints.
const programEnvironment = "CLEAT_DPU_PROGRAM"

// builder builds cleat at a path, with more arguments of go build.
type builder func(path string, args ...string) error

func build(path string, args ...string) error {
	return testkit.BuildTo(context.Background(), path, testkit.Cleat, args...)
}

// programs returns the programs under test, prebuilt or built in dir. It prints
// which.
func programs(prebuilt, dir string, out io.Writer, build builder) (plain, raced string, err error) {
	if prebuilt != "" {
		info, err := os.Stat(prebuilt)
		switch {
		case err != nil:
			return "", "", fmt.Errorf("%s: %w", programEnvironment, err)
		case !filepath.IsAbs(prebuilt) || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
			return "", "", fmt.Errorf("%s is %q: give the absolute path of a cleat program", programEnvironment, prebuilt)
		}
		fmt.Fprintf(out, "%s is set: %s is tested, nothing is built\n", programEnvironment, prebuilt)
		return prebuilt, prebuilt, nil
	}
	plain, raced = filepath.Join(dir, "cleat"), filepath.Join(dir, "cleat-race")
	for path, args := range map[string][]string{plain: {"-tags", "crashpoints"}, raced: {"-race", "-tags", "crashpoints"}} {
		fmt.Fprintf(out, "%s is not set: building ./cmd/cleat with %s\n", programEnvironment, strings.Join(args, " "))
		err = errors.Join(err, build(path, args...))
	}
	return plain, raced, err
}

// The suite prints what it builds, and accepts a prebuilt program instead.
func TestPrograms(t *testing.T) {
	t.Parallel()
	self := testkit.Value(os.Executable())(t)
	var out strings.Builder
	var built []string
	note := func(path string, args ...string) error {
		built = append(built, path+" "+strings.Join(args, " "))
		return nil
	}
	plain, raced, err := programs(self, "/dir", &out, note)
	if err != nil || plain != self || raced != self || len(built) > 0 || !strings.Contains(out.String(), self) {
		t.Errorf("prebuilt: %s, %s, %v; built %q, printed %q", plain, raced, err, built, &out)
	}
	for _, bad := range []string{"cleat", "/absent/cleat", os.TempDir()} {
		if _, _, err := programs(bad, "/dir", &out, note); err == nil || !strings.Contains(err.Error(), programEnvironment) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	out.Reset()
	plain, raced, err = programs("", "/dir", &out, note)
	if err != nil || plain != "/dir/cleat" || raced != "/dir/cleat-race" || len(built) != 2 || strings.Count(out.String(), "building ./cmd/cleat") != 2 {
		t.Errorf("not prebuilt: %s, %s, %v; built %q, printed %q", plain, raced, err, built, &out)
	}
}

package site

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

package strategy

import "fmt"

// RowValues makes arguments, which every driver takes, of the values that
// identify a row of the application's own.
func RowValues(id []any, want int) ([]any, error) {
	if len(id) != want {
		return nil, fmt.Errorf("%d values for %d key columns", len(id), want)
	}
	args := make([]any, len(id))
	for i, v := range id {
		switch v := v.(type) {
		case string, []byte, int64:
			args[i] = v
		case int:
			args[i] = int64(v)
		case int32:
			args[i] = int64(v)
		default:
			return nil, fmt.Errorf("a key column's value is a %T; use a string, an integer or a byte slice", v)
		}
	}
	return args, nil
}

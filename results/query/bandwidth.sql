-- name: rows
{ctes}
SELECT {fields}, runs.measured_gbs, paired.{length.field} AS placed_{length.column},
       paired.{other.field} AS placed_{other.column}
FROM paired JOIN runs USING (run_id)
WHERE paired.{length.field} IS NOT NULL
ORDER BY paired.dtype, paired.shape, paired.{other.field}, paired.{length.field}, implementation

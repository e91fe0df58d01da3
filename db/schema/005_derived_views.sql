-- Remove the views from the migrations. `views.sql` defines them, and kernrec creates them after the last migration.

DROP VIEW front;
DROP VIEW best;
DROP VIEW answer;
DROP VIEW whole_card_rows;
